/* order.cu - the order of work of the fast forward kernels (common/gpu/query_tile.cuh): every tile of every head is some block's, and
 * once; and within a group of heads the first tiles come first. How many heads a group has depends on the chip's L2, so that the
 * grids, whose problems are small, have one group alone. */
#include "../common/gpu/query_tile.cuh"
#include "device_array.cuh"
#include "tap.h"

__global__ void order_kernel(Problem p, int together, int tiles, int count, HeadTurn *turns) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count)
        turns[i] = head_turn(p, together, tiles, i);
}

static void test_order(int heads, int together, int tiles) {
    Problem p = {};
    p.batch = 1, p.heads = p.kv_heads = heads;
    const int count = heads * tiles;
    const DeviceArray<HeadTurn> turns(count);
    LAUNCH(order_kernel, (count + 63) / 64, 64, 0, p, together, tiles, count, turns.pointer);

    std::vector<int> times(count, 0);
    bool inside = true, in_order = true;
    HeadTurn before = {0, 0};
    for (const HeadTurn &now : turns.read()) {
        const bool exists = now.batch_head >= 0 && now.batch_head < heads && now.turn >= 0 && now.turn < tiles;
        inside = inside && exists;
        if (exists)
            times[now.batch_head * tiles + now.turn]++;
        const bool same_group = now.batch_head / together == before.batch_head / together;
        in_order = in_order && (same_group ? now.turn >= before.turn : now.batch_head > before.batch_head);
        before = now;
    }
    bool once = inside;
    for (int n : times)
        once = once && n == 1;
    ok(once, "%d heads, %d together, %d tiles each: every tile once", heads, together, tiles);
    ok(in_order, "... and within a group first tiles come first");
}

int main(void) {
    test_order(1, 1, 5);
    test_order(6, 1, 3);
    test_order(6, 6, 3);
    test_order(6, 2, 3);
    test_order(7, 3, 4); /* the last group has one head */
    test_order(8, 5, 1);
    return tap_done();
}
