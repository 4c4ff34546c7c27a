/* 10_block_sparse/lists - which key blocks each query tile keeps: found once, before attention.
 *
 * The idea. A kernel that asks of every tile whether the mask keeps it pays for tiles that it does not
 * keep. So a small kernel asks once, for all heads, and writes down the answers. For each query tile,
 * MASK_BLOCK queries, there are two lists:
 *
 *     partial   key blocks of which some pairs are kept: the diagonal or the edge of a window or document runs through
 *               them, or the keys end in them. Attention evaluates the mask there, element by element
 *     full      key blocks of which every pair is kept. Attention looks at no mask
 *
 * A block of which nothing is kept is in neither list. (FlexAttention and FlashAttention-4 keep the same two lists.)
 * Attention walks the list of the partial blocks first, from its last block on, so that the block in which the keys end
 * comes first of all.
 *
 *     key block        0  1  2  3  4  5  6                          a window, causal: query tile 5
 *     query tile 5     .  /  #  #  #  \  .                          . nothing kept   / \ partial   # full
 *     its list         2 3 4 | 1 5                                  3 full, then 2 partial; walked from its end
 *
 * Query tiles whose lists are longest shall start first. A second kernel finds each tile's rank: how many tiles have a
 * longer list.
 *
 * Who owns what. build_lists: a warp has a query tile, and its lanes ask about 32 key blocks at a time. order_tiles: a
 * thread has a query tile.
 *
 * What it costs. As many questions as the mask has blocks, twice; 4 bytes for each block of the mask and 20 for each
 * query tile, for each batch entry. The mask of 65536 x 65536 pairs has 512 x 512 blocks: 1 MiB, where a byte for each
 * pair would take 4 GiB.
 */
#include "../common/gpu/softmax.cuh"
#include "lists.cuh"

constexpr int ORDER_THREADS = 128;

/* Writes one of a query tile's lists behind the `end` entries that are there. Returns where it ends. */
__device__ inline int append_list(int *list, int end, TileKept kind, const Problem &p, const BlockMask &mask, int keys,
                                  int row) {
    const int lane = threadIdx.x;
    for (int key = lane * MASK_BLOCK; key - lane * MASK_BLOCK < keys; key += 32 * MASK_BLOCK) {
        const bool found =
            key < keys && tile_kept(&mask, &p, keys, row, row + MASK_BLOCK, key, key + MASK_BLOCK) == kind;
        const unsigned all = __ballot_sync(WHOLE_WARP, found);
        if (found)
            list[end + __popc(all & ((1u << lane) - 1))] = key / MASK_BLOCK; /* after those that lower lanes found */
        end += __popc(all);
    }
    return end;
}

__global__ void build_lists(Problem p, Tensors t, Lists lists) {
    const int query_tiles = ceil_div(p.seqlen_q, MASK_BLOCK), batch = blockIdx.x / query_tiles;
    const int keys = key_length(&p, t.key_lengths, batch), row = blockIdx.x % query_tiles * MASK_BLOCK;
    int *list = lists.key_blocks + (size_t)blockIdx.x * ceil_div(p.seqlen_k, MASK_BLOCK);
    const int full = append_list(list, 0, TILE_FULL, p, t.mask, keys, row);
    const int both = append_list(list, full, TILE_PARTIAL, p, t.mask, keys, row);
    if (threadIdx.x == 0)
        lists.lengths[blockIdx.x] = {full, both - full};
}

/* Of two tiles with lists of the same length the last one comes first, as in query_tile.cuh. */
__global__ void order_tiles(Problem p, Lists lists) {
    const int query_tiles = ceil_div(p.seqlen_q, MASK_BLOCK), i = blockIdx.x * ORDER_THREADS + threadIdx.x;
    const int batch = i / query_tiles, tile = i % query_tiles;
    if (batch >= p.batch)
        return;
    const ListLengths *lengths = lists.lengths + batch * query_tiles, own = lengths[tile];
    int rank = 0;
    for (int other = 0; other < query_tiles; other++) {
        const int longer_by = lengths[other].full + lengths[other].partial - own.full - own.partial;
        rank += longer_by > 0 || (longer_by == 0 && other > tile);
    }
    lists.order[batch * query_tiles + rank] = {tile, own};
}

static int plan(const Problem *p, Buffer *workspace) {
    workspace[KEY_BLOCKS] = {"key blocks", list_count(p) * blocks_of(p->seqlen_k) * sizeof(int), nullptr, 0};
    workspace[LIST_LENGTHS] = {"list lengths", list_count(p) * sizeof(ListLengths), nullptr, 0};
    workspace[LONGEST_FIRST] = {"longest first", list_count(p) * sizeof(OrderedTile), nullptr, 0};
    workspace[NEXT_TILE] = {"next query tile", sizeof(uint32_t), nullptr, 1};
    return NEXT_TILE;
}
PLANNER(sparse_skipping_plan) { return plan(p, workspace); }
PLANNER(sparse_overlapped_plan) { return plan(p, workspace) + 1; }

LAUNCHER(sparse_lists) {
    const Lists lists = lists_in(workspace);
    const int count = (int)list_count(p);
    LAUNCH(build_lists, count, 32, 0, *p, *t, lists);
    LAUNCH(order_tiles, ceil_div(count, ORDER_THREADS), ORDER_THREADS, 0, *p, lists);
}
