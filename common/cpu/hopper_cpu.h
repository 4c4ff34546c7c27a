/* hopper_cpu.h - the twins of gpu/hopper.cuh on the CPU device: the same names, the same results.
 *
 * What is asynchronous on the chip is late here, as late as a program may count on:
 *
 *     TMA      a tile becomes NaN when it is asked for, and arrives when a thread waits for it at the mbarrier, or when
 *              nobody can run. Where a wait is missing NaN is read, and so it is by a thread that still reads a tile whose
 *              place was given away
 *     bulk_add is done at the bulk_wait_read that it must be done at, and where that is missing never
 *     wgmma    is computed at the wgmma_wait that it must be done at, from what shared memory and the registers of A hold by
 *              then. Where a wait is missing D is as it was
 *
 * Descriptors are decoded, tiles are swizzled by address bits, as the hardware does it. setmaxnreg moves no registers, and
 * counts them: a block has as many as it was launched with, and an increase waits until there are enough. Whoever waits says
 * what for, in case nobody can run any more. Not modelled: the fewer bits that an 8-bit wgmma keeps when it adds up, warps of
 * a warpgroup that run apart (all four are done with a wgmma at the same time), and a block that ends with copies under way.
 *
 * The trace counts what TMA moves, a row of a tile as one access, and not what wgmma reads from shared memory. For races it
 * looks at both. TMA writes from its issue to the end of its mbarrier's phase, after all that the issuing thread knows of. Each
 * warp's wgmma reads B, and its own 16 rows of A, from its issue to that warp's wgmma_wait; so a stage must be given back by
 * all four warps. A thread's arrival hands on what it did and knows, to those who wait for the phase: trace_order.h. What a
 * thread wrote and wgmma or TMA meets needs its proxy_fence. (mbarrier_init_fence does nothing, and is not missed.)
 */
#ifndef FA_HOPPER_CPU_H
#define FA_HOPPER_CPU_H

#include <vector>

#define HOPPER
#define __grid_constant__

/* ---- shared memory by address, 0 where the block's begins, as PTX does ---- */
inline unsigned char *shared_byte(uint32_t address) {
    return static_cast<unsigned char *>(simt_shared(0, __FILE__, __LINE__)) + address;
}
inline uint32_t shared_address(const void *pointer) {
    return (uint32_t)(static_cast<const unsigned char *>(pointer) - shared_byte(0));
}
inline uint32_t swizzled(uint32_t address, int row_bytes) {
    return address ^ (address >> 3 & (row_bytes == 128 ? 0x70 : 0x30));
}

/* ---- mbarrier. To the trace initialising it is a write, and using it a read: those do not race with each other. ---- */
struct alignas(8) Mbarrier {
    uint16_t count, pending; /* arrivals a phase, and those still to come */
    int32_t bytes : 31;      /* announced and not yet written */
    uint32_t parity : 1;     /* of the phase at hand */
};
static_assert(sizeof(Mbarrier) == 8, "as on the GPU");

NOT_TRACED inline void mbarrier_set(Mbarrier *barrier, int count) {
    *barrier = {(uint16_t)count, (uint16_t)count, 0, 0};
}
inline void mbarrier_init(Mbarrier *barrier, int count, CALLER) {
    simt_need_shared("mbarrier_init", barrier, 8, file, line);
    trace_beside_write(barrier, 8);
    mbarrier_set(barrier, count);
}
inline void mbarrier_init_fence() {}

/* The phase is over if nothing is missing any more: wakes those who wait. */
NOT_TRACED inline void mbarrier_check(Mbarrier *barrier) {
    if (barrier->pending || barrier->bytes)
        return;
    barrier->parity ^= 1;
    barrier->pending = barrier->count;
    trace_phase(barrier);
    simt_wake(barrier);
}
NOT_TRACED inline void mbarrier_describe(const void *of, int parity, char *text, size_t size) {
    const Mbarrier *barrier = static_cast<const Mbarrier *>(of);
    snprintf(text, size, ", byte %u of shared memory, for parity %d: %d of %d arrivals and %d bytes are missing",
             shared_address(of), parity, barrier->pending, barrier->count, barrier->bytes);
}
/* On the chip an arrival too many for a phase is undefined; copies that are under way may end the phase before. Here they do:
 * the thread waits for that, and others can go on. So one who fills a stage again too early meets those who read it. */
NOT_TRACED inline void mbarrier_arrived(Mbarrier *barrier, int bytes, const char *file, int line) {
    if (barrier->pending > barrier->count || !barrier->count || barrier->count > SIMT_MAX_BLOCK)
        simt_fail(file, line, "mbarrier_arrive: the mbarrier was not initialized");
    while (!barrier->pending)
        simt_sleep("mbarrier_arrive", barrier, barrier->parity, mbarrier_describe, file, line);
    barrier->bytes += bytes;
    barrier->pending--;
    trace_release(barrier);
    mbarrier_check(barrier);
}
inline void mbarrier_arrive_expect(Mbarrier *barrier, int bytes, CALLER) {
    simt_need_shared("mbarrier_arrive", barrier, 8, file, line);
    trace_beside_read(barrier, 8);
    mbarrier_arrived(barrier, bytes, file, line);
}
inline void mbarrier_arrive(Mbarrier *barrier, CALLER) { mbarrier_arrive_expect(barrier, 0, file, line); }

/* ---- TMA ---- */
struct TensorMap {
    const unsigned char *matrix;
    int columns, rows, matrices; /* columns in bytes */
    int tile_rows, row_bytes, element;
};

template <typename E, int RowBytes>
TensorMap tensor_map(const void *matrix, int columns, int rows, int matrices, int tile_rows) {
    if ((uintptr_t)matrix % 16 || columns * sizeof(E) % 16 || columns < 1 || rows < 1 || matrices < 1 || tile_rows < 1 ||
        tile_rows > 256)
        fprintf(stderr, "tensor_map refuses %d matrices of %d x %d\n", matrices, rows, columns), exit(2);
    return {static_cast<const unsigned char *>(matrix), columns * (int)sizeof(E), rows, matrices, tile_rows,
            Swizzle<RowBytes>::pattern_bytes / 8, (int)sizeof(E)};
}

inline bool elect_one() { return simt_lane() == 0; }

struct TmaCopy {
    TensorMap map;
    uint32_t to; /* shared */
    int column, row, matrix;
    bool swizzles;
    Mbarrier *barrier;
};

/* An addition, on its way from shared to device memory. */
struct BulkAddition {
    float *to;
    const float *from; /* shared */
    int floats;
    unsigned thread, batch;
};

/* Any array of registers. Their names keep a compiler for the GPU from moving reads and writes of them across a fence or a wait. */
struct Registers {
    const void *begin, *end;
    Registers() : begin(nullptr), end(nullptr) {}
    template <typename T, int N> Registers(T (&array)[N]) : begin(array), end(array + N) {}
    bool have(const void *from, const void *to) const { return begin <= from && to <= end; }
};

/* What this core's block has under way. */
struct Wgmma;
struct WgmmaWords { /* which are the same for all threads */
    const char *what, *file;
    int line, batch, n;
    bool add;
    uint64_t a, b; /* descriptors */
    void (*compute)(const Wgmma &operation);
};
struct Wgmma : WgmmaWords {
    int threads; /* so many of the warpgroup have come to it */
    float *d[128];
    const uint32_t *a_registers[128]; /* or NULL */
};
struct HopperState {
    unsigned block;
    std::vector<TmaCopy> copies;
    std::vector<BulkAddition> additions;
    unsigned addition_batch[SIMT_MAX_BLOCK]; /* of each thread's next addition */
    struct {
        std::vector<Wgmma> queue; /* oldest first */
        int next[128];            /* in the queue, for each thread */
        int batch;                /* of the next wgmma */
        bool fenced;              /* since the last wait; */
        std::vector<Registers> of_fences; /* what these fences named, by its first thread: all run the same code */
        int registers;            /* a thread, by setmaxnreg; 0: as many as it began with */
    } warpgroup[SIMT_MAX_BLOCK / 128];
    struct NamedBarrier {
        int threads, arrived; /* of those that it takes */
        unsigned round;
    } named[16];
};
inline HopperState &hopper_state() {
    void **kept = simt_hardware();
    if (!*kept)
        *kept = new HopperState();
    HopperState &state = *static_cast<HopperState *>(*kept);
    if (state.block != simt_block_count()) {
        state = HopperState();
        state.block = simt_block_count();
    }
    return state;
}

/* The 16 bytes of the tensor that go to row r, chunk c of the tile, or NULL outside of it. */
inline const unsigned char *tma_source(const TmaCopy &copy, int r, int c) {
    const TensorMap &map = copy.map;
    int row = copy.row + r, column = copy.column * map.element + 16 * c;
    bool inside =
        row >= 0 && row < map.rows && column >= 0 && column < map.columns && copy.matrix >= 0 && copy.matrix < map.matrices;
    return inside ? map.matrix + ((size_t)copy.matrix * map.rows + row) * map.columns + column : nullptr;
}

/* Lets all copies arrive that this barrier counts. */
NOT_TRACED inline void tma_land(Mbarrier *barrier) {
    std::vector<TmaCopy> &copies = hopper_state().copies;
    for (size_t i = 0; i < copies.size();) {
        const TmaCopy copy = copies[i];
        if (copy.barrier != barrier) {
            i++;
            continue;
        }
        copies.erase(copies.begin() + i);
        for (int r = 0; r < copy.map.tile_rows; r++)
            for (int c = 0; c < copy.map.row_bytes / 16; c++) {
                const unsigned char *from = tma_source(copy, r, c);
                const uint32_t address = copy.to + r * copy.map.row_bytes + 16 * c;
                unsigned char *to = shared_byte(copy.swizzles ? swizzled(address, copy.map.row_bytes) : address);
                if (from)
                    memcpy(to, from, 16);
                else
                    memset(to, 0, 16);
            }
        barrier->bytes -= copy.map.tile_rows * copy.map.row_bytes;
        mbarrier_check(barrier);
    }
}

NOT_TRACED inline int tma_land_all() {
    auto &copies = hopper_state().copies;
    const size_t count = copies.size();
    while (!copies.empty())
        tma_land(copies[0].barrier);
    return count > 0;
}

/* What tma_load and bulk_load have in common. For the trace: a row is in the tensor or not, and so is a chunk of it; what is
 * longer than a tile's row counts as several. */
inline void tma_begin(const TmaCopy &copy) {
    const TensorMap &map = copy.map;
    for (int r = 0; r < map.tile_rows; r++)
        for (int first = 0; first < map.row_bytes; first += 128) {
            const int end = min(first + 128, map.row_bytes);
            int inside = first;
            while (inside < end && tma_source(copy, r, inside / 16))
                inside += 16;
            if (inside > first)
                trace_read(tma_source(copy, r, first / 16), inside - first);
            trace_async_write(shared_byte(copy.to + r * map.row_bytes + first), end - first, copy.barrier);
        }
    memset(shared_byte(copy.to), 0xff, map.tile_rows * map.row_bytes);
    hopper_state().copies.push_back(copy);
    simt_when_stuck(tma_land_all);
    simt_wake(copy.barrier); /* one who waits already lets it arrive */
}
inline void tma_load(void *shared, const TensorMap &map, int row, int column, int matrix, Mbarrier *barrier, CALLER) {
    const int bytes = map.tile_rows * map.row_bytes;
    simt_need_shared("tma_load", shared, 16, file, line);
    simt_need_shared("tma_load", static_cast<unsigned char *>(shared) + bytes - 16, 16, file, line);
    if (shared_address(shared) % 128)
        simt_fail(file, line, "tma_load: the tile begins at %u, not at a multiple of 128 bytes", shared_address(shared));
    if (column * map.element % 16)
        simt_fail(file, line, "tma_load: column %d is not at a multiple of 16 bytes", column);
    tma_begin({map, shared_address(shared), column, row, matrix, true, barrier});
}

/* What bulk_load and bulk_add ask for. */
inline void need_bulk(const char *what, const void *shared, const void *device, int bytes, const char *file, int line) {
    if (bytes < 16 || bytes % 16)
        simt_fail(file, line, "%s: %d bytes; choose a multiple of 16", what, bytes);
    simt_need_shared(what, shared, 16, file, line);
    simt_need_shared(what, static_cast<const unsigned char *>(shared) + bytes - 16, 16, file, line);
    simt_need_aligned(what, device, 16, file, line);
}
inline void bulk_load(void *shared, const void *from, int bytes, Mbarrier *barrier, CALLER) {
    need_bulk("bulk_load", shared, from, bytes, file, line);
    tma_begin({{static_cast<const unsigned char *>(from), bytes, 1, 1, 1, bytes, 1}, shared_address(shared), 0, 0, 0, false,
               barrier});
}

/* ---- additions from shared to device memory: done at the wait. One that is never waited for is never done. ---- */
inline void bulk_add(float *to, const void *shared, int bytes, CALLER) {
    need_bulk("bulk_add", shared, to, bytes, file, line);
    trace_bulk_add(to, shared, bytes);
    const unsigned thread = threadIdx.x;
    hopper_state().additions.push_back({to, static_cast<const float *>(shared), bytes / 4, thread,
                                        hopper_state().addition_batch[thread]});
}
inline void bulk_commit() {
    hopper_state().addition_batch[threadIdx.x]++;
    trace_bulk_commit();
}
NOT_TRACED inline void finish_additions(unsigned pending) {
    auto &all = hopper_state().additions;
    const unsigned thread = threadIdx.x, end = hopper_state().addition_batch[thread];
    for (size_t i = 0; i < all.size();) {
        const BulkAddition addition = all[i];
        if (addition.thread != thread || addition.batch + pending >= end) {
            i++;
            continue;
        }
        all.erase(all.begin() + i);
        for (int word = 0; word < addition.floats; word++) {
            float old, sum;
            __atomic_load(addition.to + word, &old, __ATOMIC_RELAXED);
            do
                sum = old + addition.from[word];
            while (!__atomic_compare_exchange(addition.to + word, &old, &sum, false, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED));
        }
    }
}
template <int Pending> void bulk_wait_read() {
    finish_additions(Pending);
    trace_bulk_wait(Pending);
}

/* A phase of the other parity is at hand: this one is over, or, of a fresh barrier, the one before the first. */
NOT_TRACED inline void mbarrier_sleep(Mbarrier *barrier, int parity, const char *file, int line) {
    while (barrier->parity == (unsigned)parity) {
        tma_land(barrier);
        if (barrier->parity == (unsigned)parity)
            simt_sleep("mbarrier_wait", barrier, parity, mbarrier_describe, file, line);
    }
}
inline void mbarrier_wait(Mbarrier *barrier, int parity, CALLER) {
    simt_need_shared("mbarrier_wait", barrier, 8, file, line);
    trace_beside_read(barrier, 8);
    mbarrier_sleep(barrier, parity, file, line);
    trace_acquire(barrier);
}

/* ---- proxies: only the trace looks at them ---- */
inline void proxy_fence() { trace_proxy_fence(); }

/* ---- named barriers. On the chip a warp arrives as one; here its lanes do, and one that stays away is missing. ---- */
NOT_TRACED inline HopperState::NamedBarrier &named_arrived(const char *what, int id, int threads, const char *file, int line) {
    if (id < 1 || id > 15)
        simt_fail(file, line, "%s: barrier %d; choose 1 to 15", what, id);
    if (threads < 32 || threads > SIMT_MAX_BLOCK || threads % 32)
        simt_fail(file, line, "%s: %d threads; choose whole warps", what, threads);
    auto &barrier = hopper_state().named[id];
    if (barrier.arrived && barrier.threads != threads)
        simt_fail(file, line, "%s: barrier %d for %d threads; the thread that arrived first said %d", what, id, threads,
                  barrier.threads);
    barrier.threads = threads;
    trace_release(&barrier);
    if (++barrier.arrived == threads) {
        barrier.arrived = 0;
        barrier.round++;
        trace_phase(&barrier);
        simt_wake(&barrier);
    }
    return barrier;
}
NOT_TRACED inline void named_describe(const void *of, int id, char *text, size_t size) {
    const auto *barrier = static_cast<const HopperState::NamedBarrier *>(of);
    snprintf(text, size, ", barrier %d: %d of %d threads are there", id, barrier->arrived, barrier->threads);
}
inline void named_barrier_arrive(int id, int threads, CALLER) {
    named_arrived("named_barrier_arrive", id, threads, file, line);
}
NOT_TRACED inline HopperState::NamedBarrier &named_wait(int id, int threads, const char *file, int line) {
    const unsigned round = id >= 0 && id < 16 ? hopper_state().named[id].round : 0;
    auto &barrier = named_arrived("named_barrier_sync", id, threads, file, line);
    while (barrier.round == round)
        simt_sleep("named_barrier_sync", &barrier, id, named_describe, file, line);
    return barrier;
}
inline void named_barrier_sync(int id, int threads, CALLER) {
    [[maybe_unused]] auto &barrier = named_wait(id, threads, file, line);
    trace_acquire(&barrier);
}

/* ---- setmaxnreg. A block has what it began with: as many registers per thread as __launch_bounds__(threads, 1) allows. ---- */
enum { REGISTER_FILE = 65536 };
inline auto &this_warpgroup() { return hopper_state().warpgroup[threadIdx.x / 128]; }
inline int registers_at_entry() { return min(REGISTER_FILE / (int)blockDim.x / 8 * 8, 256); }
/* Those of the whole block that nobody has. */
NOT_TRACED inline int registers_free() {
    const int entry = registers_at_entry();
    int unused = entry * blockDim.x;
    for (int group = 0; group * 128 < (int)blockDim.x; group++) {
        const int registers = hopper_state().warpgroup[group].registers;
        unused -= (registers ? registers : entry) * min(128, (int)blockDim.x - 128 * group);
    }
    return unused;
}
NOT_TRACED inline int registers_now() { return this_warpgroup().registers ? this_warpgroup().registers : registers_at_entry(); }
NOT_TRACED inline void registers_describe(const void *, int more, char *text, size_t size) {
    snprintf(text, size, " for %d more registers per thread: %d in all, but only %d are free", more, 128 * more,
             registers_free());
}
template <int N> NOT_TRACED void decrease_registers(void **) {
    this_warpgroup().registers = N;
    simt_wake(&hopper_state());
}
template <int N> NOT_TRACED void setmaxnreg(bool increase, const char *what, const char *file, int line) {
    static_assert(N % 8 == 0 && N >= 24 && N <= 256, "a multiple of 8 from 24 to 256");
    if (increase ? N < registers_now() : N > registers_now())
        simt_fail(file, line, "%s to %d: the thread has %d registers", what, N, registers_now());
    simt_warpgroup(what, nullptr, increase ? nullptr : decrease_registers<N>, file, line);
    while (registers_now() != N) /* the first thread of the warpgroup that finds enough of them takes them for all */
        if (128 * (N - registers_now()) <= registers_free())
            this_warpgroup().registers = N;
        else
            simt_sleep(what, &hopper_state(), N - registers_now(), registers_describe, file, line);
}
template <int N> void setmaxnreg_decrease(CALLER) { setmaxnreg<N>(false, "setmaxnreg_decrease", file, line); }
template <int N> void setmaxnreg_increase(CALLER) { setmaxnreg<N>(true, "setmaxnreg_increase", file, line); }

/* ---- wgmma ---- */

/* What a descriptor names, as chunks of 16 bytes: 2 for each row of A or column of B. A K-major matrix has them row by row.
 * An MN-major one has chunks of 8 columns; of each, the 16 k one below the other. So columns 8 i .. 8 i + 7 are chunks
 * 16 i .. 16 i + 15 of either. */
struct Described {
    uint32_t start, leading, stride;
    int row_bytes;
    explicit Described(uint64_t descriptor)
        : start((descriptor & 0x3fff) << 4), leading((descriptor >> 16 & 0x3fff) << 4),
          stride((descriptor >> 32 & 0x3fff) << 4), row_bytes(descriptor >> 62 == 1 ? 128 : 64) {}
    template <Major major> const unsigned char *chunk(int i) const {
        const int row = major == K_MAJOR ? i / 2 : i % 16, byte = 16 * (major == K_MAJOR ? i % 2 : i / 16);
        const uint32_t panel = byte / row_bytes * leading;
        return shared_byte(swizzled(start + panel + row / 8 * stride + row % 8 * row_bytes + byte % row_bytes, row_bytes));
    }
};

typedef float Float4 __attribute__((vector_size(16), may_alias));
struct Float8 {
    Float4 low, high;
};

/* Eight rows of A, or columns of B: value[k] has element k of all eight. */
template <typename E, Major major> NOT_TRACED void wgmma_operand(const Described &matrix, int first, Float8 *value) {
    constexpr int K = 32 / sizeof(E), elements = 16 / sizeof(E);
    Code<E> code[K][8];
    for (int i = 0; i < 16; i++) {
        Code<E> chunk[elements];
        memcpy(chunk, matrix.chunk<major>(2 * first + i), 16);
        for (int e = 0; e < elements; e++)
            (major == K_MAJOR ? code[i % 2 * elements + e][i / 2] : code[i][e % 8]) = chunk[e];
    }
    elements_to_floats<E>(code[0], reinterpret_cast<float *>(value), 8 * K);
}

template <typename E, Major major, Major A> NOT_TRACED void compute_wgmma(const Wgmma &w) {
    constexpr int K = 32 / sizeof(E);
    float a[64][K];
    if (w.a_registers[0]) {
        Code<E> code[64][K];
        for (int thread = 0; thread < 128; thread++) /* register i: 8 rows down if odd, 16 bytes right from the third on */
            for (int i = 0; i < 4; i++)
                memcpy(&code[thread / 32 * 16 + thread % 32 / 4 + 8 * (i % 2)][(16 * (i / 2) + 4 * (thread % 4)) / sizeof(E)],
                       &w.a_registers[thread][i], 4);
        elements_to_floats<E>(code[0], a[0], 64 * K);
    } else {
        for (int row = 0; row < 64; row += 8) {
            Float8 rows[K];
            wgmma_operand<E, A>(Described(w.a), row, rows);
            for (int r = 0; r < 8; r++)
                for (int k = 0; k < K; k++)
                    a[row + r][k] = reinterpret_cast<float *>(&rows[k])[r];
        }
    }
    const Described matrix(w.b);
    for (int column = 0; column < w.n; column += 8) { /* a core matrix of D: 8 columns */
        Float8 b[K];
        wgmma_operand<E, major>(matrix, column, b);
        for (int row = 0; row < 64; row++) {
            Float4 low = {}, high = {};
            for (int k = 0; k < K; k++)
                low += a[row][k] * b[k].low, high += a[row][k] * b[k].high;
            const float sum[8] = {low[0], low[1], low[2], low[3], high[0], high[1], high[2], high[3]};
            for (int pair = 0; pair < 4; pair++) { /* a thread's share */
                float *d = w.d[row / 16 * 32 + row % 8 * 4 + pair] + column / 2 + row % 16 / 8 * 2;
                d[0] = w.add ? d[0] + sum[2 * pair] : sum[2 * pair];
                d[1] = w.add ? d[1] + sum[2 * pair + 1] : sum[2 * pair + 1];
            }
        }
    }
}

/* `rows` of A, or columns of B: its last chunk lies farthest from its start. The pattern of the swizzle is 8 rows, and a matrix begins
 * in the first of them: hence the alignment of Panels. (Another start would need the descriptor's field for it, which is 0 here.) */
template <Major major> void check_descriptor(uint64_t descriptor, int rows, const WgmmaWords &at) {
    const int swizzle = (int)(descriptor >> 62);
    if (swizzle != 1 && swizzle != 2)
        simt_fail(at.file, at.line, "wgmma: a descriptor with swizzle %d; choose 1 (128 bytes) or 2 (64 bytes)", swizzle);
    const Described matrix(descriptor);
    if (matrix.start % (8 * matrix.row_bytes) >= (unsigned)matrix.row_bytes)
        simt_fail(at.file, at.line, "wgmma: a matrix begins at %u, outside the first of the swizzle's 8 rows, which is at a multiple of %d bytes",
                  matrix.start, 8 * matrix.row_bytes);
    simt_need_shared("wgmma", Described(descriptor).chunk<major>(2 * rows - 1), 16, at.file, at.line);
}

/* A wgmma's registers must have been named by a fence: otherwise a compiler may move the writes before it beyond the wgmma. */
NOT_TRACED inline void need_fence(const char *operand, const void *begin, const void *end, const WgmmaWords &w) {
    for (const Registers &named : this_warpgroup().of_fences)
        if (named.have(begin, end))
            return;
    simt_fail(w.file, w.line, "wgmma: no wgmma_fence since the last wgmma_wait named the registers of its %s", operand);
}

/* A thread comes to a wgmma. It does not wait for the others: all meet at wgmma_commit. */
template <Major major, Major A> NOT_TRACED void begin_wgmma(const WgmmaWords &w, float *d, const uint32_t *a_registers) {
    auto &group = this_warpgroup();
    const int thread = threadIdx.x % 128;
    if (!group.fenced)
        simt_fail(w.file, w.line, "wgmma without a wgmma_fence since the last wgmma_wait");
    if (thread == 0) {
        need_fence("D", d, d + w.n / 2, w);
        if (a_registers)
            need_fence("A", a_registers, a_registers + 4, w);
    }
    if ((size_t)group.next[thread] == group.queue.size()) {
        if (!a_registers)
            check_descriptor<A>(w.a, 64, w);
        check_descriptor<major>(w.b, w.n, w);
        group.queue.push_back({w, 0, {}, {}});
    }
    Wgmma &same = group.queue[group.next[thread]++];
    if (same.a != w.a || same.b != w.b || same.add != w.add || same.compute != w.compute || same.n != w.n)
        simt_fail(w.file, w.line, "wgmma: the threads of the warpgroup disagree on a descriptor");
    same.d[thread] = d;
    same.a_registers[thread] = a_registers;
    if (++same.threads == 128)
        trace_collective(w.what, threadIdx.x / 32, 0);
}

template <int N, int K> struct WgmmaName {
    char text[24];
    WgmmaName() { snprintf(text, sizeof text, "wgmma_m64n%dk%d", N, K); }
};
template <int N, int K> inline const WgmmaName<N, K> wgmma_name;

template <typename E, Major major, Major A, int N>
void wgmma(float *d, const uint32_t *a_registers, uint64_t a, uint64_t b, bool add, const char *file, int line) {
    static_assert(N == 64 || N == 128 || N == 256, "N is 64, 128 or 256");
    static_assert((major == K_MAJOR && A == K_MAJOR) || sizeof(E) == 2, "only 16-bit types can be MN-major");
#ifdef TRACE
    /* The warp reads B, and its own 16 rows of A, from now to its wgmma_wait; a lane stands for every 32nd chunk. */
    const int warp = threadIdx.x % 128 / 32, lane = threadIdx.x % 32;
    for (int i = lane; i < 2 * N; i += 32)
        trace_async_read(Described(b).chunk<major>(i), 16);
    if (!a_registers)
        trace_async_read(Described(a).chunk<A>(32 * warp + lane), 16);
#endif
    begin_wgmma<major, A>({wgmma_name<N, 32 / sizeof(E)>.text, file, line, this_warpgroup().batch, N, add, a, b,
                           compute_wgmma<E, major, A>},
                          d, a_registers);
}
template <typename E, Major B = K_MAJOR, Major A = K_MAJOR, int Pieces>
void wgmma(float (&d)[Pieces][4], uint64_t a, uint64_t b, bool add, CALLER) {
    wgmma<E, B, A, 8 * Pieces>(d[0], nullptr, a, b, add, file, line);
}
template <typename E, Major B = K_MAJOR, int Pieces>
void wgmma(float (&d)[Pieces][4], const uint32_t (&a)[4], uint64_t b, bool add, CALLER) {
    wgmma<E, B, K_MAJOR, 8 * Pieces>(d[0], a, 0, b, add, file, line);
}

NOT_TRACED inline void keep_named(std::initializer_list<Registers> registers) {
    auto &all = this_warpgroup().of_fences;
    if (threadIdx.x % 128 == 0)
        all.insert(all.end(), registers);
}
inline void wgmma_fence(Registers a = {}, Registers b = {}, Registers c = {}, Registers d = {}, CALLER) {
    keep_named({a, b, c, d});
    simt_warpgroup("wgmma_fence", nullptr, [](void **) { this_warpgroup().fenced = true; }, file, line);
}
NOT_TRACED inline void close_batch(void **) {
    auto &group = this_warpgroup();
    for (const Wgmma &w : group.queue)
        if (w.threads != 128)
            simt_fail(w.file, w.line, "%s: %d of the warpgroup's 128 threads have reached it", w.what, w.threads);
    group.batch++;
    trace_batch();
}
inline void wgmma_commit(CALLER) { simt_warpgroup("wgmma_commit", nullptr, close_batch, file, line); }
template <int Pending> NOT_TRACED void finish_wgmmas(void **) {
    auto &group = this_warpgroup();
    int done = 0;
    for (; done < (int)group.queue.size() && group.queue[done].batch < group.batch - Pending; done++)
        group.queue[done].compute(group.queue[done]);
    group.queue.erase(group.queue.begin(), group.queue.begin() + done);
    for (int &next : group.next)
        next -= done;
    group.fenced = false;
    group.of_fences.clear();
}
template <int Pending>
void wgmma_wait(Registers = {}, Registers = {}, Registers = {}, Registers = {}, Registers = {}, Registers = {}, CALLER) {
    simt_warpgroup("wgmma_wait", nullptr, finish_wgmmas<Pending>, file, line);
    trace_wait(Pending);
}

#endif
