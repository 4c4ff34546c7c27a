/* hopper.cuh - the instructions that only Hopper has (compute capability 9.0, compiled for
 * sm_90a): mbarrier, TMA, wgmma.
 *
 * As in instructions.cuh, each function is one PTX instruction (PTX ISA 8.x, section 9.7), and cpu/hopper_cpu.h has a
 * function of the same name for the CPU device. TMA and wgmma are *asynchronous*: a thread starts the work and goes on.
 *
 *     mbarrier   a word in shared memory at which threads wait for work of others, TMA's above all
 *     TMA        the tensor memory accelerator: one thread names a tile of a tensor, and it comes to shared memory
 *     wgmma      warpgroup mma: four warps together multiply 64 rows by a matrix that lies in shared memory
 *
 * A kernel for these has its body inside #ifdef HOPPER. For other chips it compiles to nothing, and the harness does
 * not launch it there (stage.h: WGMMA).
 */
#ifndef FA_HOPPER_CUH
#define FA_HOPPER_CUH

#include "instructions.cuh"

/* A tile in shared memory as TMA writes it and wgmma reads it: rows of 128 or of 64 bytes, whose 16-byte chunks are
 * swizzled. In a row of 128 bytes, chunk number c is at position c XOR row % 8, as in tile.cuh. Rows of 64 bytes have
 * four chunks, and two rows fill the 32 banks: there chunk c is at position c XOR row / 2 % 4. The hardware computes
 * both from the bits of the address:
 *
 *     128-byte rows   address bits 4-6 (the chunk) ^= bits 7-9       a tile begins at a multiple of 1024 bytes
 *      64-byte rows   address bits 4-5             ^= bits 7-8                                       512
 *
 * A matrix with longer rows is cut into *panels*, each with 128 bytes of every row; panels lie one after the other. */
template <int RowBytes> struct Swizzle {
    static_assert(RowBytes == 128 || RowBytes == 64, "one of TMA's swizzles");
    static constexpr int pattern_bytes = 8 * RowBytes;         /* after which it repeats: eight rows */
    static constexpr int descriptor = RowBytes == 128 ? 1 : 2; /* what wgmma calls it, see the descriptor below */
};

/* How an operand of wgmma lies in shared memory, A, M x K, or B, K x N. K_MAJOR: [m][k] or [n][k], neighboring k
 * together; 8-bit types know no other. MN_MAJOR: [k][m] or [k][n]. */
enum Major { K_MAJOR, MN_MAJOR };

#ifndef __CUDACC__
#include "../cpu/hopper_cpu.h"
#else

#include <cstdio>
#include <cstdlib>
#include <cuda.h> /* for CUtensorMap; nothing of the driver's library is linked */
#include <type_traits>

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define HOPPER
#endif

/* ---- mbarrier: 64 bits in shared memory that count what is still to come --------------------------------------------
 * An mbarrier goes through *phases*. A phase is over when `count` threads have arrived and all bytes that were
 * announced have been written; the next phase begins at once, with the same count. A phase is named by its parity: the
 * first phase has parity 0, the second 1, the third 0 again. A thread says the parity of the phase whose end it waits
 * for. Two phases that are two apart have the same parity, so a thread must not fall more than one phase behind.
 *
 *     thread 0                                       all threads
 *     mbarrier_init(&b, 1)
 *     mbarrier_init_fence()
 *     __syncthreads()                                __syncthreads()
 *     mbarrier_arrive_expect(&b, bytes)              mbarrier_wait(&b, 0)      what came by TMA can be read now
 *     tma_load(..., &b)  -> bytes arrive             ...
 *     mbarrier_arrive_expect(&b, bytes) ...          mbarrier_wait(&b, 1)
 */
typedef uint64_t Mbarrier;

__device__ inline void mbarrier_init(Mbarrier *barrier, int count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(count) : "memory");
}
/* To be called after mbarrier_init and before the __syncthreads after which other threads use the mbarriers. By PTX's
 * words it orders this thread's mbarrier.init, and nothing else, before what the threads of the cluster do later. PTX
 * does not say that TMA, which takes another road to shared memory (another *proxy*) than threads do, then sees the
 * mbarriers, too. The kernels here rely on it, as those of CUTLASS do. */
__device__ inline void mbarrier_init_fence() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

/* This thread arrives, and announces that TMA will write `bytes` bytes. The phase does not end before that. */
__device__ inline void mbarrier_arrive_expect(Mbarrier *barrier, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
                 ::"r"(shared_address(barrier)), "r"(bytes) : "memory");
}
__device__ inline void mbarrier_arrive(Mbarrier *barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}
/* Waits for the end of the phase of this parity. try_wait sleeps for a limited time and then says whether the phase is
 * over. */
__device__ inline void mbarrier_wait(Mbarrier *barrier, int parity) {
    uint32_t done;
    do
        asm volatile("{\n .reg .pred p;\n mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
                     " selp.u32 %0, 1, 0, p;\n}"
                     : "=r"(done) : "r"(shared_address(barrier)), "r"(parity) : "memory");
    while (!done);
}

/* ---- TMA: tiles between device and shared memory --------------------------------------------------------------------
 * The host describes a tensor once, in a *tensor map*. A kernel takes the map as a parameter, `const __grid_constant__
 * TensorMap map`. One thread then requests a tile by the coordinates of the tile's first element. The hardware computes
 * the addresses, swizzles, and writes zeros for elements outside of the tensor. Those zeros count, too: an mbarrier
 * must expect the bytes of a whole tile. */
typedef CUtensorMap TensorMap;

/* For the host: the map of `matrices` row-major matrices, one after the other, each of `rows` rows of `columns`
 * elements E. A tile is tile_rows x RowBytes bytes of one matrix. Where a tile reaches beyond the last row of its
 * matrix, zeros come, not the rows of the next matrix. 1 <= tile_rows <= 256; columns * sizeof(E) is a multiple of 16;
 * `matrix` is aligned to 16 bytes. Ends the program with exit code 2 if the driver is too old or refuses the shape. */
template <typename E, int RowBytes>
inline TensorMap tensor_map(const void *matrix, int columns, int rows, int matrices, int tile_rows) {
    /* The only function of the driver that is needed. It is looked up at run time, so that programs need not link the
     * driver. */
    static const auto encode = [] {
        void *function = nullptr;
        cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
#if CUDART_VERSION >= 12050
        cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &found);
#else
        cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &function, cudaEnableDefault, &found);
#endif
        if (found != cudaDriverEntryPointSuccess)
            fprintf(stderr, "this driver has no cuTensorMapEncodeTiled: it is older than CUDA 12\n"), exit(2);
        return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(function);
    }();
    constexpr int tile_columns = RowBytes / sizeof(E);
    const cuuint64_t size[3] = {(cuuint64_t)columns, (cuuint64_t)rows, (cuuint64_t)matrices};
    const cuuint64_t pitch[2] = {columns * sizeof(E),
                                 (cuuint64_t)rows * columns * sizeof(E)}; /* bytes to the next row, matrix */
    const cuuint32_t tile[3] = {tile_columns, (cuuint32_t)tile_rows, 1}, step[3] = {1, 1, 1};
    TensorMap map;
    const CUresult error = encode(&map, sizeof(E) == 1 ? CU_TENSOR_MAP_DATA_TYPE_UINT8 : CU_TENSOR_MAP_DATA_TYPE_UINT16,
                                  3, const_cast<void *>(matrix), size, pitch, tile, step, CU_TENSOR_MAP_INTERLEAVE_NONE,
                                  RowBytes == 128 ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_64B,
                                  CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (error != CUDA_SUCCESS)
        fprintf(stderr, "TMA refuses %d matrices of %d x %d (error %d)\n", matrices, rows, columns, error), exit(2);
    return map;
}

/* True in one lane of the warp. All lanes must call it together. `lane == 0` would choose a lane, too, but then the
 * compiler does not know that only one lane is active. A TMA instruction takes its operands once a warp, not once a
 * lane, so the compiler would put a loop over the lanes around each. */
__device__ inline bool elect_one() {
    uint32_t elected;
    asm volatile("{\n .reg .pred p;\n elect.sync _|p, 0xffffffff;\n selp.u32 %0, 1, 0, p;\n}" : "=r"(elected));
    return elected;
}

/* Starts the copy to `shared` of the tile that begins at this row and column, and returns. The bytes that have arrived
 * are subtracted from those that `barrier` still expects. To be called by one thread, elect_one's. */
__device__ inline void tma_load(void *shared, const TensorMap &map, int row, int column, int matrix,
                                Mbarrier *barrier) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], "
                 "[%1, {%3, %4, %5}], [%2];"
                 ::"r"(shared_address(shared)), "l"(&map), "r"(shared_address(barrier)), "r"(column), "r"(row),
                 "r"(matrix) : "memory");
}

/* The same without a map and a swizzle: `bytes` neighboring bytes. All three are multiples of 16. */
__device__ inline void bulk_load(void *shared, const void *from, int bytes, Mbarrier *barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                 ::"r"(shared_address(shared)), "l"(from), "r"(bytes), "r"(shared_address(barrier)) : "memory");
}

/* The other way, adding: starts the addition of `bytes` bytes of floats in shared memory to neighboring floats in
 * device memory, each atomic, and returns. All three are multiples of 16. What threads have stored there needs their
 * proxy_fence, as for wgmma. bulk_wait_read waits until this thread's additions, but those of its `Pending` youngest
 * batches, have read shared memory, which can then be written again. A batch is what was started before one bulk_commit
 * and after the one before it. Before a block ends its additions must have been waited for; when a kernel ends they
 * have reached device memory. */
__device__ inline void bulk_add(float *to, const void *shared, int bytes) {
    asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;"
                 ::"l"(to), "r"(shared_address(shared)), "r"(bytes) : "memory");
}
__device__ inline void bulk_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
template <int Pending> __device__ inline void bulk_wait_read() {
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(Pending) : "memory");
}

/* ---- what roles of warps need ------------------------------------------------------------------------------------ */

/* A *proxy* is a road to shared memory: loads and stores of threads take the generic one, TMA and wgmma the
 * asynchronous one. This fence makes what this thread has stored visible on the asynchronous road. Where several
 * threads have stored, each of them must call it, and then all must meet at a barrier before wgmma or TMA reads. */
__device__ inline void proxy_fence() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

/* Named barriers, 1 to 15; number 0 is the one of __syncthreads. A barrier opens when `threads` threads, whole warps,
 * have arrived. named_barrier_sync arrives and waits until the barrier opens; named_barrier_arrive arrives and does not
 * wait. */
__device__ inline void named_barrier_sync(int barrier, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}
__device__ inline void named_barrier_arrive(int barrier, int threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

/* From here on each thread of this warpgroup has N registers, a multiple of 8. An increase waits until other warpgroups
 * have given up enough registers. The kernel must have a cap (__launch_bounds__), and each role must be one branch of
 * an if: ptxas gives each branch the registers that its setmaxnreg names. */
template <int N> __device__ inline void setmaxnreg_decrease() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}
template <int N> __device__ inline void setmaxnreg_increase() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}

/* ---- wgmma: D (+)= A B, by the 128 threads of a warpgroup -----------------------------------------------------------
 *
 *     D 64 x N, fp32, in registers        A 64 x K                        B K x N, in shared memory, stored [n][k]; or,
 *                                                                         16-bit types only, [k][n]: Major
 *     warp w owns rows 16 w .. 16 w + 15. In there D is N / 8 mma tiles side by side, as C of mma_m16n8k16:
 *     d[i][0], d[i][1]: row lane/4, columns 8 i + 2 (lane%4) + {0, 1}; d[i][2], d[i][3]: the same of row lane/4 + 8
 *
 *     N is 64, 128 or 256 here (the instruction has every multiple of 8). K is 32 bytes: 16 elements of fp16, 32 of
 *     fp8. A comes from shared memory, stored [m][k] (16-bit types also [k][m]), or from registers: then each warp
 *     brings its 16 rows as the A fragment of mma_m16n8k16 or m16n8k32. (D, A, B, M, N and K are the instruction's.)
 *
 * A wgmma runs on after the instruction has been issued, and reads and writes registers meanwhile. So:
 *
 *     wgmma_fence(d, a)       before the first wgmma of a batch: all earlier writes to these registers are done
 *     wgmma(d, ...) ...       starts a product; d, and a if it is in registers, must now be left alone
 *     wgmma_commit()          closes the batch
 *     wgmma_wait<n>(d)        waits until at most the n youngest batches are running; d, of an older one, is then done
 *
 * wgmma_fence and wgmma_wait take the registers that they are about. The PTX instructions do not name registers, so the
 * compiler could move a write to a register behind the fence, or a read in front of the wait.
 *
 * All arrays must end up in registers: fixed indices in unrolled loops, and functions that are inlined. Otherwise ptxas
 * waits after each wgmma (warnings C7510 to C7515).
 *
 * What lies in shared memory is named by a *descriptor*: see the next section. */
/* Tells the compiler that these registers change here, so that it moves no write of them down and no read of them up
 * across this point. Makes no instruction. */
template <int Tiles> __device__ inline void changed(float (&d)[Tiles][4]) {
    UNROLL for (int i = 0; i < 4 * Tiles; i++)
        asm volatile("" : "+f"(d[i / 4][i % 4])::"memory");
}
template <int Steps> __device__ inline void changed(uint32_t (&a)[Steps][4]) {
    UNROLL for (int i = 0; i < 4 * Steps; i++)
        asm volatile("" : "+r"(a[i / 4][i % 4])::"memory");
}
template <int Tiles> __device__ inline void changed(float (&c)[1][Tiles][4]) { changed(c[0]); }
template <typename... Registers> __device__ inline void wgmma_fence(Registers &...registers) {
    (changed(registers), ...);
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ inline void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int Pending, typename... Registers> __device__ inline void wgmma_wait(Registers &...d) {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(Pending) : "memory");
    (changed(d), ...);
}

/* The PTX of a wgmma names every register of D, N / 2 of them. These macros write the lists. */
#define REGISTERS_32                                                                                                   \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                                           \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define REGISTERS_64                                                                                                   \
    REGISTERS_32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "                  \
                 "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define REGISTERS_128                                                                                                  \
    REGISTERS_64 ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "                  \
                 "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "                    \
                 "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "        \
                 "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define IN_OUT_8(d, n)                                                                                                 \
    "+f"(d[n][0]), "+f"(d[n][1]), "+f"(d[n][2]), "+f"(d[n][3]),                                                        \
    "+f"(d[n + 1][0]), "+f"(d[n + 1][1]), "+f"(d[n + 1][2]), "+f"(d[n + 1][3])
#define IN_OUT_32(d, n) IN_OUT_8(d, n), IN_OUT_8(d, n + 2), IN_OUT_8(d, n + 4), IN_OUT_8(d, n + 6)
#define IN_OUT_64(d, n) IN_OUT_32(d, n), IN_OUT_32(d, n + 8)
#define IN_OUT_128(d, n) IN_OUT_64(d, n), IN_OUT_64(d, n + 16)

/* One wgmma. `shape` is as in m64n64k32.f32.e4m3.e4m3; x0 .. x5 are the numbers of the operands after D: A (a
 * descriptor, or four registers), B, whether to add to D or to overwrite it. `end`: for 16-bit types which way A, if
 * shared, and B lie. The factors scale-a and scale-b are 1. */
#define WGMMA(shape, registers, in_out, from_a, from_b, from_add, end, ...)                                            \
    asm volatile("{\n .reg .pred p;\n setp.ne.b32 p, " from_add ", 0;\n"                                               \
                 " wgmma.mma_async.sync.aligned." shape " {" registers                                                 \
                 "}, " from_a ", " from_b ", p, 1, 1" end ";\n}" : in_out : __VA_ARGS__ : "memory")
#define WGMMA_SHARED(n, count, format, x0, x1, x2, end)                                                                \
    WGMMA("m64n" #n format, REGISTERS_##count, IN_OUT_##count(d, 0), x0, x1, x2, end, "l"(a), "l"(b), "r"((int)add),   \
          "n"((int)A), "n"((int)B))
#define WGMMA_REGISTERS(n, count, format, x0, x1, x2, x3, x4, x5, end)                                                 \
    WGMMA("m64n" #n format, REGISTERS_##count, IN_OUT_##count(d, 0), "{" x0 ", " x1 ", " x2 ", " x3 "}", x4, x5, end,  \
          "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"((int)add), "n"((int)B))
#define WGMMA_SHARED_ANY(format, end)                                                                                  \
    if constexpr (Tiles == 8) WGMMA_SHARED(64, 32, format, "%32", "%33", "%34", end(35, 36));                          \
    else if constexpr (Tiles == 16) WGMMA_SHARED(128, 64, format, "%64", "%65", "%66", end(67, 68));                   \
    else { static_assert(Tiles == 32, "N is 64, 128 or 256");                                                          \
        WGMMA_SHARED(256, 128, format, "%128", "%129", "%130", end(131, 132)); }
#define WGMMA_REGISTERS_ANY(format, end)                                                                               \
    if constexpr (Tiles == 8) WGMMA_REGISTERS(64, 32, format, "%32", "%33", "%34", "%35", "%36", "%37", end(38));      \
    else if constexpr (Tiles == 16)                                                                                    \
        WGMMA_REGISTERS(128, 64, format, "%64", "%65", "%66", "%67", "%68", "%69", end(70));                           \
    else { static_assert(Tiles == 32, "N is 64, 128 or 256");                                                          \
        WGMMA_REGISTERS(256, 128, format, "%128", "%129", "%130", "%131", "%132", "%133", end(134)); }
#define A_AND_B_MAJOR(i, j) ", %" #i ", %" #j
#define B_MAJOR(i) ", %" #i
#define NOTHING(...) ""

/* D = A B, or D += A B if `add`. E is the element type of A and B: __half, __nv_bfloat16, E4m3, E5m2. N follows from
 * the size of d: Tiles = N / 8. A from shared memory; a and b are descriptors: */
template <typename E, Major B = K_MAJOR, Major A = K_MAJOR, int Tiles>
__device__ inline void wgmma(float (&d)[Tiles][4], uint64_t a, uint64_t b, bool add) {
    if constexpr (std::is_same_v<E, __half>) { WGMMA_SHARED_ANY("k16.f32.f16.f16", A_AND_B_MAJOR) }
    else if constexpr (std::is_same_v<E, __nv_bfloat16>) { WGMMA_SHARED_ANY("k16.f32.bf16.bf16", A_AND_B_MAJOR) }
    else if constexpr (std::is_same_v<E, E4m3>) { WGMMA_SHARED_ANY("k32.f32.e4m3.e4m3", NOTHING) }
    else { WGMMA_SHARED_ANY("k32.f32.e5m2.e5m2", NOTHING) }
}
/* A from registers, b a descriptor: */
template <typename E, Major B = K_MAJOR, int Tiles>
__device__ inline void wgmma(float (&d)[Tiles][4], const uint32_t (&a)[4], uint64_t b, bool add) {
    if constexpr (std::is_same_v<E, __half>) { WGMMA_REGISTERS_ANY("k16.f32.f16.f16", B_MAJOR) }
    else if constexpr (std::is_same_v<E, __nv_bfloat16>) { WGMMA_REGISTERS_ANY("k16.f32.bf16.bf16", B_MAJOR) }
    else if constexpr (std::is_same_v<E, E4m3>) { WGMMA_REGISTERS_ANY("k32.f32.e4m3.e4m3", NOTHING) }
    else { WGMMA_REGISTERS_ANY("k32.f32.e5m2.e5m2", NOTHING) }
}

#endif /* __CUDACC__ */

/* ---- the descriptor of a matrix in shared memory, as wgmma takes it: 64 bits ----------------------------------------
 *
 *     bits    63-62      61-52   51-49     48-46   45-32          31-30   29-16          15-14   13-0
 *            +---------+-------+---------+-------+--------------+-------+--------------+-------+-----------------+
 *            | swizzle |   0   | base    |   0   | stride / 16  |   0   | leading / 16 |   0   | address / 16    |
 *            +---------+-------+---------+-------+--------------+-------+--------------+-------+-----------------+
 *            1: 128    0: the pattern    bytes from eight rows  not used with a        address in shared memory:
 *            2: 64     begins where      to the next eight:     swizzle: K = 32 bytes  18 bits are enough for 256 KB
 *               bytes  the address says  8 RowBytes             are inside of a row
 *
 * How many rows there are follows from the instruction: 64 of A, N of B. The descriptor of the next 32 bytes along k
 * has address + 32, although these bytes do not lie there: the hardware applies the swizzle to the address after the
 * addition. Leading is set to 1: what PTX assumes where it is not used. */
template <int RowBytes> __device__ inline uint64_t wgmma_descriptor(const void *shared) {
    return (uint64_t)Swizzle<RowBytes>::descriptor << 62 | (uint64_t)(Swizzle<RowBytes>::pattern_bytes / 16) << 32 |
           (uint64_t)1 << 16 | (shared_address(shared) & 0x3ffff) >> 4;
}
/* The descriptor of an MN-major B, stored [k][n], of a 16-bit type. It lies in panels: a panel has a row for each k,
 * with RowBytes bytes of n, and the next panel begins panel_bytes further on. (An MN-major A, stored [k][m], is the
 * same; its 64 columns are one panel of 128 bytes.) In this order both offsets are used: leading, from panel to panel;
 * stride, from eight rows to the next eight. The next K = 16 rows are at address + 16 RowBytes. */
template <int RowBytes> __device__ inline uint64_t wgmma_descriptor_mn(const void *shared, int panel_bytes) {
    return (uint64_t)Swizzle<RowBytes>::descriptor << 62 | (uint64_t)(Swizzle<RowBytes>::pattern_bytes / 16) << 32 |
           (uint64_t)(panel_bytes / 16) << 16 | (shared_address(shared) & 0x3ffff) >> 4;
}
/* The descriptor of what lies `bytes` further on. */
__device__ inline uint64_t wgmma_advance(uint64_t descriptor, int bytes) { return descriptor + (bytes >> 4); }

/* ---- a matrix in shared memory as TMA writes it and wgmma reads it --------------------------------------------------
 * Panels, one after the other, each with Rows rows of 128 bytes; or one panel with rows of 64 bytes, if a row of the
 * matrix has 64. */
template <typename E, int Rows, int Columns> struct Panels {
    static constexpr int row_bytes = Columns * sizeof(E) < 128 ? 64 : 128;
    static constexpr int panel_bytes = Rows * row_bytes, bytes = Rows * Columns * sizeof(E);
    alignas(1024) unsigned char byte[bytes];

    /* Requests from TMA the tile that begins at this row and column of the map's matrix number `matrix`; its bytes
     * count at `full`. To be called by one thread. */
    __device__ void load(const TensorMap &map, int row, int column, int matrix, Mbarrier *full) {
        static_assert(alignof(Panels) >= Swizzle<row_bytes>::pattern_bytes, "the swizzle goes by the address");
        UNROLL for (int i = 0; i < bytes; i += panel_bytes)
            tma_load(byte + i, map, row, column + i / Rows / (int)sizeof(E), matrix, full);
    }
    /* The same, where nothing else counts in this phase of `full`: arrives there and
     * announces the tile's bytes first. */
    __device__ void expect_and_load(const TensorMap &map, int row, int column, int matrix, Mbarrier *full) {
        mbarrier_arrive_expect(full, bytes);
        load(map, row, column, matrix, full);
    }

    /* The 16 bytes that are chunk `chunk` of row `row`. */
    __device__ unsigned char *chunk(int row, int chunk) {
        static_assert(row_bytes == 128, "the swizzle of 128-byte rows");
        return byte + chunk / 8 * panel_bytes + row * row_bytes + (chunk % 8 ^ row % 8) * 16;
    }

    /* As a K-major operand, whose rows are m or n and whose columns are k: the descriptor of its rows from `row` on, a
     * multiple of 8. One wgmma takes 32 bytes along k; those of the wgmma number `step` begin offset(step) bytes
     * further on. */
    __device__ uint64_t descriptor(int row = 0) const { return wgmma_descriptor<row_bytes>(byte + row * row_bytes); }
    __device__ static constexpr int offset(int step) {
        return 32 * step / row_bytes * panel_bytes + 32 * step % row_bytes;
    }

    /* As an MN-major operand, whose rows are k and whose columns, from panel number `panel` on, are m or n: one wgmma
     * takes 16 rows. */
    __device__ uint64_t descriptor_mn(int panel = 0) const {
        return wgmma_descriptor_mn<row_bytes>(byte + panel * panel_bytes, panel_bytes);
    }
    __device__ static constexpr int offset_mn(int step) { return 16 * step * row_bytes; }
};

#endif
