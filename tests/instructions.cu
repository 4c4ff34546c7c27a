/* instructions.cu - do the wrappers of gpu/instructions.cuh and their CPU twins do what the PTX ISA says? Each instruction
 * is run with random operands, every lane writes out its registers, and the host compares them, bit for bit, with what the
 * documented layout gives: row = lane / 4, column = 2 * (lane % 4) + {0, 1} in every 8x8 atom. mma is compared with fp64.
 * Runs on both devices. */
#include "../common/gpu/softmax.cuh"
#include "../common/gpu/tile.cuh"
#include "../common/numeric.h"
#include "mma.cuh"

template <typename T> struct SixteenBits {
    using Code = uint16_t;
    static Code draw() { return Format<T>::code(random_float(-3, 3)); }
    static double mma_error() { return 0x1p-20; }
};
template <> struct Format<__half> : SixteenBits<__half> {
    static const char *name() { return "fp16"; }
    static Code code(float value) { return float_to_fp16(value); }
    static float value(Code code) { return fp16_to_float(code); }
};
template <> struct Format<__nv_bfloat16> : SixteenBits<__nv_bfloat16> {
    static const char *name() { return "bf16"; }
    static Code code(float value) { return float_to_bf16(value); }
    static float value(Code code) { return bf16_to_float(code); }
};

static uint32_t pair_of(uint16_t low, uint16_t high) { return low | (uint32_t)high << 16; }

/* ---- ldmatrix ---- */

enum { CHUNKS = 64 };
struct ChunkMemory {
    alignas(128) uint16_t element[8 * CHUNKS];
};

/* Each lane hands in the address of chunk chunks[lane]. */
template <bool transposed>
__global__ void run_ldmatrix(const uint16_t *elements, const int *chunks, uint32_t *out) {
    SHARED_MEMORY(memory, ChunkMemory);
    for (int i = threadIdx.x; i < 8 * CHUNKS; i += 32)
        memory.element[i] = elements[i];
    __syncthreads();
    uint32_t r[4];
    const void *row = memory.element + 8 * chunks[threadIdx.x];
    transposed ? ldmatrix_x4_trans(r, row) : ldmatrix_x4(r, row);
    for (int i = 0; i < 4; i++)
        out[4 * threadIdx.x + i] = r[i];
}

template <bool transposed> static void test_ldmatrix() {
    std::vector<uint16_t> elements(8 * CHUNKS);
    std::vector<int> chunks(32);
    for (auto &element : elements)
        element = (uint16_t)random_bits();
    int wrong = 0;
    for (int round = 0; round < 20; round++) {
        for (auto &chunk : chunks)
            chunk = random_bits() % CHUNKS;
        DeviceArray<uint16_t> device_elements(elements);
        DeviceArray<int> device_chunks(chunks);
        DeviceArray<uint32_t> out(32 * 4);
        LAUNCH(run_ldmatrix<transposed>, 1, 32, sizeof(ChunkMemory), device_elements.pointer,
               device_chunks.pointer, out.pointer);
        auto got = out.read();
        for (int lane = 0; lane < 32; lane++)
            for (int i = 0; i < 4; i++) {
                auto element = [&](int row, int column) { return elements[8 * chunks[8 * i + row] + column]; };
                int r = lane / 4, c = 2 * (lane % 4);
                uint32_t want =
                    transposed ? pair_of(element(c, r), element(c + 1, r)) : pair_of(element(r, c), element(r, c + 1));
                wrong += got[4 * lane + i] != want;
            }
    }
    ok(wrong == 0, "ldmatrix_x4%s", transposed ? "_trans" : "");
}

/* ---- conversions and exp2 ---- */

template <typename T> __global__ void convert(const float *values, int count, uint32_t *packed, float *widened) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count)
        packed[i] = pack_pair<T>(values[i], -values[i]);
    uint16_t code = (uint16_t)i;
    T element;
    memcpy(&element, &code, 2);
    if (i < 65536)
        widened[i] = to_float(element);
}

template <typename T> static void test_conversions() {
    std::vector<float> values = {0, 1, INFINITY, 65504, 65519.996f, 65520, 3.4e38f, 1e-40f, 0x1p-24f, 0x1p-25f, 0x1.8p-25f};
    for (int i = 0; i < 20000; i++) { /* random bits: every exponent; midpoints of neighboring codes: ties */
        uint32_t bits = random_bits() & 0x7fffffff;
        values.push_back(bits < 0x7f800000 ? bits_float(bits) : 1.0f);
        uint16_t code = random_bits() % 0x7bff;
        values.push_back((Format<T>::value(code) + Format<T>::value(code + 1)) / 2);
    }
    DeviceArray<float> device_values(values), widened(65536);
    DeviceArray<uint32_t> packed(values.size());
    LAUNCH((convert<T>), 512, 128, 0, device_values.pointer, (int)values.size(), packed.pointer, widened.pointer);
    auto got = packed.read();
    auto wide = widened.read();
    int wrong = 0;
    for (size_t i = 0; i < values.size(); i++)
        wrong += got[i] != pair_of(Format<T>::code(values[i]), Format<T>::code(-values[i]));
    ok(wrong == 0, "pack_pair %s: rounds to nearest, ties to even", Format<T>::name());
    wrong = 0;
    for (int i = 0; i < 65536; i++) {
        float want = Format<T>::value((uint16_t)i);
        wrong += want == want ? float_bits(wide[i]) != float_bits(want) : wide[i] == wide[i];
    }
    ok(wrong == 0, "to_float %s: every code", Format<T>::name());
}

__global__ void run_exp2(const float *x, int count, float *y) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count)
        y[i] = exp2_approx(x[i]);
}

static void test_exp2() {
    std::vector<float> x = {-INFINITY, -1e30f, -127.0f, -0.0f, 1e-40f, INFINITY, NAN};
    const size_t special = x.size();
    for (int i = -126; i <= 127; i++)
        x.push_back(i);
    const size_t exact = x.size();
    for (int i = 0; i < 100000; i++)
        x.push_back(random_float(i % 2 ? -126 : -1, i % 2 ? 127.9f : 1));

    DeviceArray<float> device_x(x), device_y(x.size());
    LAUNCH(run_exp2, ceil_div((int)x.size(), 128), 128, 0, device_x.pointer, (int)x.size(), device_y.pointer);
    auto y = device_y.read();
    ok(y[0] == 0 && y[1] == 0 && y[2] == 0, "exp2_approx: 0 for -inf and wherever the result is below 2^-126");
    ok(y[3] == 1 && y[4] == 1 && y[5] == INFINITY && y[6] != y[6], "exp2_approx: 0, a subnormal, infinity, NaN");
    int wrong = 0;
    for (size_t i = special; i < exact; i++)
        wrong += y[i] != ldexpf(1, (int)x[i]);
    ok(wrong == 0, "exp2_approx: exact powers of two");
    double worst = 0;
    for (size_t i = exact; i < x.size(); i++) {
        double error = fabs(y[i] / exp2((double)x[i]) - 1);
        worst = error <= worst ? worst : error;
    }
    ok(worst < 0x1p-22, "exp2_approx: relative error 2^%.1f", log2(worst));
}

__global__ void run_reciprocal_and_tanh(const float *x, int count, float *y, float *z) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count)
        y[i] = reciprocal_approx(x[i]), z[i] = tanh_approx(x[i]);
}

static void test_reciprocal_and_tanh() {
    std::vector<float> x = {1, -2, 0x1p126f, INFINITY, 0, 0x1p127f};
    const size_t special = x.size();
    for (int i = 0; i < 100000; i++)
        x.push_back(random_float(i % 2 ? 1e-3f : -20, i % 2 ? 1 : 20));
    DeviceArray<float> device_x(x), device_y(x.size()), device_z(x.size());
    LAUNCH(run_reciprocal_and_tanh, ceil_div((int)x.size(), 128), 128, 0, device_x.pointer, (int)x.size(), device_y.pointer,
           device_z.pointer);
    auto y = device_y.read(), z = device_z.read();
    ok(y[0] == 1 && y[1] == -0.5f && y[2] == 0x1p-126f && y[3] == 0 && y[4] == INFINITY && y[5] == 0,
       "reciprocal_approx: powers of two; 0 wherever the result is below 2^-126");
    ok(z[3] == 1 && z[4] == 0 && z[5] == 1, "tanh_approx: 0, a large number, infinity");
    double worst = 0, worst_tanh = 0;
    for (size_t i = special; i < x.size(); i++) {
        worst = fmax(worst, fabs((double)y[i] * x[i] - 1));
        worst_tanh = fmax(worst_tanh, fabs(z[i] / tanh((double)x[i]) - 1));
    }
    ok(worst < 0x1p-22, "reciprocal_approx: relative error 2^%.1f", log2(worst));
    ok(worst_tanh < 0x1p-10, "tanh_approx: relative error 2^%.1f", log2(worst_tanh));
}

/* ---- atomic_add_4 ---- */

__global__ void run_atomic_add(float *sums) {
    atomic_add_4(sums + 4 * threadIdx.x, make_float4(1, 2, (float)threadIdx.x, (float)blockIdx.x));
}

static void test_atomic_add() {
    const int blocks = 100, threads = 64;
    DeviceArray<float> sums(std::vector<float>(4 * threads, 0.5f));
    LAUNCH(run_atomic_add, blocks, threads, 0, sums.pointer);
    auto got = sums.read();
    int wrong = 0;
    for (int i = 0; i < threads; i++) {
        const float want[4] = {blocks, 2 * blocks, (float)i * blocks, blocks * (blocks - 1) / 2};
        for (int j = 0; j < 4; j++)
            wrong += got[4 * i + j] != want[j] + 0.5f;
    }
    ok(wrong == 0, "atomic_add_4: no addition is lost");
}

/* ---- wait_ordered, atomic_add_ordered: each block reads what the one before has written ---- */

__global__ void run_in_turn(int *drawn, int *turn, int *written) {
    const int number = atomicAdd(drawn, 1);
    wait_ordered(turn, number);
    written[number + 1] = written[number] + 1;
    atomic_add_ordered(turn, 1);
}

/* The same within a block. */
__global__ void run_beside(int *turn, int *written) {
    const int warp = threadIdx.x / 32;
    if (threadIdx.x % 32 == 0) {
        wait_ordered(turn, 2 - warp); /* the last warp first */
        written[warp] = *turn;
        atomic_add_ordered(turn, 1);
    }
}

static void test_in_turn() {
    enum { blocks = 200 };
    DeviceArray<int> numbers(std::vector<int>(2, 0)), written(std::vector<int>(blocks + 1, 0));
    LAUNCH(run_in_turn, blocks, 1, 0, numbers.pointer, numbers.pointer + 1, written.pointer);
    ok(written.read()[blocks] == blocks, "wait_ordered: %d blocks, one after the other", blocks);

    DeviceArray<int> turn(std::vector<int>(1, 0)), order(std::vector<int>(3, 0));
    LAUNCH(run_beside, 1, 96, 0, turn.pointer, order.pointer);
    ok(order.read() == std::vector<int>({2, 1, 0}), "wait_ordered: the warps of a block, the last one first");
}

/* ---- wait_for_number: each block adds to the number that the one before has left ---- */

__global__ void run_on_numbers(int *drawn, int *left) {
    const int number = atomicAdd(drawn, 1);
    atomicExch(left + number + 1, wait_for_number(left + number) + 3);
}

static void test_numbers() {
    enum { blocks = 200 };
    std::vector<int> none(blocks + 1, -1);
    none[0] = 0;
    DeviceArray<int> drawn(std::vector<int>(1, 0)), left(none);
    LAUNCH(run_on_numbers, blocks, 1, 0, drawn.pointer, left.pointer);
    ok(left.read()[blocks] == 3 * blocks, "wait_for_number: %d blocks, each with what the one before left", blocks);
}

__global__ void run_quads(float *max, float *sum) {
    max[threadIdx.x] = quad_max((float)(7 * threadIdx.x % 32));
    sum[threadIdx.x] = quad_sum((float)threadIdx.x);
}
static void test_quads() {
    DeviceArray<float> max(32), sum(32);
    LAUNCH(run_quads, 1, 32, 0, max.pointer, sum.pointer);
    auto got_max = max.read(), got_sum = sum.read();
    int wrong = 0;
    for (int i = 0; i < 32; i++) {
        int most = 0;
        for (int lane = i / 4 * 4; lane < i / 4 * 4 + 4; lane++)
            most = std::max(most, 7 * lane % 32);
        wrong += got_max[i] != most || got_sum[i] != 16 * (i / 4) + 6;
    }
    ok(wrong == 0, "quad_max, quad_sum: every lane has that of its four");
}

/* ---- tiles ---- */

enum { TILE_ROWS = 64, TILE_THREADS = 64 };
template <int D> using TestTile = Tile<__half, TILE_ROWS, D>;

/* Loads rows first_row .. of a matrix that ends at row_end; writes out the tile in plain order, and each chunk's place; and copies
 * the rows back, 32 columns of one a quad. */
template <int D>
__global__ void run_tile(const __half *matrix, int first_row, int row_end, __half *plain, int *place, __half *copy) {
    SHARED_MEMORY(tile, TestTile<D>);
    load_tile_async<TILE_THREADS>(tile, matrix, first_row, row_end);
    cp_async_wait<0>();
    __syncthreads();
    for (int i = threadIdx.x; i < TILE_ROWS * D / 8; i += TILE_THREADS) {
        int row = i / (D / 8), chunk = i % (D / 8);
        store_16(plain + 8 * i, load_16(tile.chunk(row, chunk)));
        place[i] = swizzle<D>(row, chunk);
    }
    for (int i = threadIdx.x / 4; i < TILE_ROWS * D / 32; i += TILE_THREADS / 4) {
        const int row = i / (D / 32), column = i % (D / 32) * 32;
        uint32_t x[4]; /* the lane's two columns of each of four pieces */
        for (int piece = 0; piece < 4; piece++)
            x[piece] = *reinterpret_cast<uint32_t *>(tile.chunk(row, column / 8 + piece) + 2 * (threadIdx.x % 4));
        store_quad(copy + (size_t)(first_row + row) * D + column, x, first_row + row < row_end);
    }
}

template <int D> static void test_tile() {
    const int first_row = 30, row_end = first_row + TILE_ROWS - 5, chunks = D / 8;
    std::vector<uint16_t> matrix(row_end * D);
    for (auto &element : matrix)
        element = (uint16_t)random_bits();
    DeviceArray<uint16_t> device_matrix(matrix), plain(TILE_ROWS * D), copy(std::vector<uint16_t>(matrix.size()));
    DeviceArray<int> place(TILE_ROWS * chunks);
    LAUNCH((run_tile<D>), 1, TILE_THREADS, sizeof(TestTile<D>), (const __half *)device_matrix.pointer, first_row, row_end,
           (__half *)plain.pointer, place.pointer, (__half *)copy.pointer);

    auto got = plain.read();
    int wrong = 0;
    for (int i = 0; i < TILE_ROWS * D; i++)
        wrong += got[i] != (first_row + i / D < row_end ? matrix[first_row * D + i] : 0);
    ok(wrong == 0, "load_tile_async, D = %d: every element, and zeros past the last row", D);

    auto back = copy.read();
    for (size_t i = 0; i < matrix.size(); i++)
        wrong += back[i] != (i / D < (size_t)first_row ? 0 : matrix[i]);
    ok(wrong == 0, "store_quad, D = %d: every row that exists, and nothing else", D);

    auto places = place.read();
    std::vector<int> taken(TILE_ROWS * chunks);
    for (int i = 0; i < TILE_ROWS * chunks; i++) {
        bool inside = places[i] % 8 == 0 && places[i] / 8 / chunks == i / chunks; /* a chunk stays in its row */
        wrong += !inside || taken[places[i] / 8]++;
    }
    ok(wrong == 0, "swizzle, D = %d: a permutation of each row", D);

    for (int row = 0; row < TILE_ROWS; row += 8)
        for (int chunk = 0; chunk < chunks; chunk++) {
            int groups = 0; /* a bank group is 16 bytes wide, eight elements; there are eight */
            for (int i = 0; i < 8; i++)
                groups |= 1 << places[(row + i) * chunks + chunk] / 8 % 8;
            wrong += groups != 0xff;
        }
    ok(wrong == 0, "swizzle, D = %d: eight rows of a chunk lie in eight bank groups", D);
}

/* S = Q K^T, O = S V and, as a backward pass needs it, W = Q^T V (16 columns of Q), for 16 queries and 16 keys of head
 * dim 64, by one warp: the road that all tensor-core kernels take, tile to fragment to mma to fragment. */
struct AttentionTiles {
    Tile<__half, 16, 64> q, k, v;
};

__global__ void run_fragments(const __half *q, const __half *k, const __half *v, float *s_out, float *o_out, float *w_out) {
    SHARED_MEMORY(tiles, AttentionTiles);
    load_tile_async<32>(tiles.q, q, 0, 16);
    load_tile_async<32>(tiles.k, k, 0, 16);
    load_tile_async<32>(tiles.v, v, 0, 16);
    cp_async_wait<0>();
    __syncthreads();
    int row = threadIdx.x / 4, column = 2 * (threadIdx.x % 4);

    float s[2][4] = {};
    for (int inner = 0; inner < 4; inner++) {
        uint32_t a[4], b[4];
        load_a_fragment(a, tiles.q, 0, inner);
        load_b_fragments(b, tiles.k, 0, inner);
        mma_m16n8k16<__half>(s[0], a, b[0], b[1]);
        mma_m16n8k16<__half>(s[1], a, b[2], b[3]);
    }
    for (int i = 0; i < 8; i++)
        s_out[16 * (row + 8 * (i / 2 % 2)) + 8 * (i / 4) + column + i % 2] = s[i / 4][i % 4];

    const uint32_t p[4] = {pack_pair<__half>(s[0][0], s[0][1]), pack_pair<__half>(s[0][2], s[0][3]),
                           pack_pair<__half>(s[1][0], s[1][1]), pack_pair<__half>(s[1][2], s[1][3])};
    uint32_t q_trans[4];
    load_a_fragment_trans(q_trans, tiles.q, 0, 0);
    for (int n = 0; n < 64; n += 16) {
        uint32_t b[4];
        load_b_fragments_trans(b, tiles.v, 0, n);
        for (int half = 0; half < 2; half++) {
            float o[4] = {}, w[4] = {};
            mma_m16n8k16<__half>(o, p, b[2 * half], b[2 * half + 1]);
            mma_m16n8k16<__half>(w, q_trans, b[2 * half], b[2 * half + 1]);
            for (int i = 0; i < 4; i++) {
                int place = 64 * (row + 8 * (i / 2)) + n + 8 * half + column + i % 2;
                o_out[place] = o[i];
                w_out[place] = w[i];
            }
        }
    }
}

static void test_fragments() {
    std::vector<float> value[3];
    std::vector<uint16_t> code[3];
    for (int t = 0; t < 3; t++)
        for (int i = 0; i < 16 * 64; i++) { /* small integers: every sum is exact, in fp16 too */
            value[t].push_back((float)(random_bits() % 5) - 2);
            code[t].push_back(float_to_fp16(value[t][i]));
        }
    DeviceArray<uint16_t> q(code[0]), k(code[1]), v(code[2]);
    DeviceArray<float> s_out(16 * 16), o_out(16 * 64), w_out(16 * 64);
    LAUNCH(run_fragments, 1, 32, sizeof(AttentionTiles), (const __half *)q.pointer, (const __half *)k.pointer,
           (const __half *)v.pointer, s_out.pointer, o_out.pointer, w_out.pointer);
    auto s = s_out.read(), o = o_out.read(), w = w_out.read();
    const float *q_value = value[0].data(), *k_value = value[1].data(), *v_value = value[2].data();
    auto q_at = [&](int row, int d) { return q_value[64 * row + d]; };
    auto v_at = [&](int row, int d) { return v_value[64 * row + d]; };
    ok(!wrong_products(s.data(), 16, 16, 64, q_at, [&](int d, int key) { return k_value[64 * key + d]; }),
       "load_a_fragment, load_b_fragments: Q K^T");
    ok(!wrong_products(o.data(), 16, 64, 16, [&](int row, int key) { return s[16 * row + key]; }, v_at),
       "pack_pair, load_b_fragments_trans: P V with P from the accumulator");
    ok(!wrong_products(w.data(), 16, 64, 16, [&](int d, int row) { return q_at(row, d); }, v_at),
       "load_a_fragment_trans: Q^T V");
}

int main() {
    printf("# %s\n", device_properties()->name);
    test_ldmatrix<false>();
    test_ldmatrix<true>();
    test_mma<__half>();
    if (device_properties()->capability >= 80)
        test_mma<__nv_bfloat16>();
    test_conversions<__half>();
    test_conversions<__nv_bfloat16>();
    test_exp2();
    test_reciprocal_and_tanh();
    test_atomic_add();
    test_in_turn();
    test_numbers();
    test_quads();
    test_tile<32>();
    test_tile<64>();
    test_tile<96>();
    test_tile<128>();
    test_tile<256>();
    test_fragments();
    ok(!device_damaged(), "nothing was written past the end of an array");
    return tap_done();
}
