/* device_cuda.cu - device.h on an NVIDIA GPU, through the CUDA runtime. Needs CUDA Toolkit 12.4 or later. */
#include "device.h"

#include "../host/errors.h"
#include "cuda_check.h"
#include "ranks.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <vector>

/* The kernel launched last: a launch returns before the kernel runs, so a failure is noticed later, elsewhere. */
static struct {
    const char *kernel, *file;
    int line;
} last_launch;

void device_check(cudaError_t error, const char *call, const char *file, int line) {
    const char *says = cudaGetErrorString(error);
    if (error != cudaSuccess && last_launch.kernel)
        cannot_run("%s:%d: %s: %s (last launch: %s, %s:%d)", file, line, call, says, last_launch.kernel, last_launch.file,
                   last_launch.line);
    if (error != cudaSuccess)
        cannot_run("%s:%d: %s: %s", file, line, call, says);
}

/* ---- properties ---- */

static DeviceProperties properties;

/* Asked which instruction set it was compiled for, it answers for all kernels: one ARCH builds them all. */
static __global__ void probe() {}

/* Whether that was sm_90a, whose wgmma not even a later chip has. */
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
static __device__ int hopper_code = 1;
#else
static __device__ int hopper_code = 0;
#endif

/* The virtual architecture __CUDA_ARCH__ stood for, x 10. PTX compiled by the driver counts as what the PTX was made for:
 * a kernel for compute_75 runs on sm_90, but has sm_75's code paths inside. */
static int compiled_capability(int chip) {
    cudaFuncAttributes attributes;
    cudaError_t error = cudaFuncGetAttributes(&attributes, probe);
    if (error == cudaErrorNoKernelImageForDevice || error == cudaErrorInvalidDeviceFunction ||
        error == cudaErrorUnsupportedPtxVersion)
        cannot_run("this program contains no code that this GPU can run: build it with ARCH=%d (%s)", chip,
                   cudaGetErrorString(error));
    CHECK(error);
    return attributes.ptxVersion;
}

int device_count(void) {
    int count;
    cudaError_t error = cudaGetDeviceCount(&count); /* if there is none that is an error, too */
    if (error != cudaSuccess)
        cannot_run("no NVIDIA GPU can be used here (%s): build with DEVICE=cpu", cudaGetErrorString(error));
    return count;
}

void device_choose(int number) { CHECK(cudaSetDevice(number)); }

int device_join_ranks(const char *file) {
    ranks_join(file);
    return ranks().number;
}

/* All kernels go into one queue of our own, since what goes into CUDA's default one cannot be recorded as a graph. It is a
 * blocking stream: it waits for the default one, where copies and memsets go, and the default one for it. */
static cudaStream_t queue;
static cudaEvent_t timing_starts, timing_stops;

static void open_device(void) {
    int device, version, clock_khz;
    device_count();
    CHECK(cudaGetDevice(&device));
    cudaDeviceProp chip;
    CHECK(cudaGetDeviceProperties(&chip, device));
    CHECK(cudaDeviceGetAttribute(&clock_khz, cudaDevAttrClockRate, device)); /* CUDA 13 no longer has it in cudaDeviceProp */
    CHECK(cudaRuntimeGetVersion(&version));

    int capability = chip.major * 10 + chip.minor;
    DeviceProperties &p = properties;
    snprintf(p.name, sizeof p.name, "%.127s", chip.name);
    snprintf(p.cuda_version, sizeof p.cuda_version, "%d.%d", version / 1000, version % 1000 / 10);
    p.capability = std::min(capability, compiled_capability(capability));
    char compiled[32] = "";
    if (p.capability < capability)
        snprintf(compiled, sizeof compiled, " (code for sm_%d)", p.capability);
    snprintf(p.platform, sizeof p.platform, "sm_%d%s, %d SMs, CUDA %s", capability, compiled, chip.multiProcessorCount,
             p.cuda_version);
    p.chip = capability;
    p.sm_count = chip.multiProcessorCount;
    p.clock_mhz = clock_khz / 1000;
    CHECK(cudaMemcpyFromSymbol(&p.has_hopper, hopper_code, sizeof p.has_hopper));
    p.shared_bytes = chip.sharedMemPerBlockOptin;
    p.l2_bytes = (size_t)chip.l2CacheSize;
    p.memory_bytes = chip.totalGlobalMem;
    CHECK(cudaStreamCreate(&queue));
    CHECK(cudaEventCreate(&timing_starts));
    CHECK(cudaEventCreate(&timing_stops));
}

const DeviceProperties *device_properties(void) {
    if (!properties.sm_count)
        open_device();
    return &properties;
}

/* ---- memory ---- */

/* Before each timed run a buffer at least twice the size of L2 is overwritten, which drives everything else out of it. */
static void *flush_buffer;
static size_t flush_bytes(void) { return std::max(2 * device_properties()->l2_bytes, (size_t)128 << 20); }

struct Allocation {
    unsigned char *pointer;
    size_t bytes;
    const char *purpose;
};
static std::vector<Allocation> allocations;

/* Behind each allocation lies a strip of known bytes; a kernel that writes past the end changes them. They are NaN in fp32,
 * fp16, bf16 and e5m2, so that what reads past the end shows it, and not the NaN that fills fresh memory. */
static const size_t GUARD_BYTES = 256;
static const std::vector<uint16_t> GUARD(GUARD_BYTES / 2, 0xfffd);

/* Left free for what the driver takes for kernels' stacks when they are first launched. */
static const size_t DRIVER_BYTES = (size_t)64 << 20;

void *device_alloc(size_t bytes, const char *purpose) {
    size_t available, total, reserve = DRIVER_BYTES + (flush_buffer ? 0 : flush_bytes());
    CHECK(cudaMemGetInfo(&available, &total));
    if (available < reserve + GUARD_BYTES || bytes > available - reserve - GUARD_BYTES)
        return nullptr;
    unsigned char *pointer;
    cudaError_t error = cudaMalloc(&pointer, bytes + GUARD_BYTES);
    if (error == cudaErrorMemoryAllocation) {
        cudaGetLastError(); /* or the next launch would be blamed */
        return nullptr;
    }
    CHECK(error);
    device_fill(pointer, 0xff, bytes);
    CHECK(cudaMemcpy(pointer + bytes, GUARD.data(), GUARD_BYTES, cudaMemcpyHostToDevice));
    allocations.push_back({pointer, bytes, purpose});
    return pointer;
}

void device_free(void *pointer) {
    if (!pointer)
        return;
    auto found =
        std::find_if(allocations.begin(), allocations.end(), [=](const Allocation &a) { return a.pointer == pointer; });
    if (found == allocations.end())
        cannot_run("device_free: %p was never allocated, or has already been freed", pointer);
    CHECK(cudaFree(pointer));
    allocations.erase(found);
}

size_t device_allocated(void) {
    size_t bytes = 0;
    for (const Allocation &a : allocations)
        bytes += a.bytes;
    return bytes;
}

const char *device_damaged(void) {
    for (const Allocation &a : allocations) {
        unsigned char strip[GUARD_BYTES];
        CHECK(cudaMemcpy(strip, a.pointer + a.bytes, GUARD_BYTES, cudaMemcpyDeviceToHost));
        if (memcmp(strip, GUARD.data(), GUARD_BYTES) != 0) {
            CHECK(cudaMemcpy(a.pointer + a.bytes, GUARD.data(), GUARD_BYTES, cudaMemcpyHostToDevice));
            return a.purpose;
        }
    }
    return nullptr;
}

void device_write(void *device, const void *host, size_t bytes) {
    CHECK(cudaMemcpy(device, host, bytes, cudaMemcpyHostToDevice));
}
void device_read(void *host, const void *device, size_t bytes) {
    CHECK(cudaMemcpy(host, device, bytes, cudaMemcpyDeviceToHost));
}
void device_fill(void *device, int byte, size_t bytes) { CHECK(cudaMemset(device, byte, bytes)); }

/* ---- launches and time ---- */

void *device_stream(void) {
    device_properties();
    return queue_in_use ? queue_in_use : queue;
}

void device_check_launch(const char *kernel, const char *file, int line) {
    last_launch = {kernel, file, line};
    CHECK(cudaGetLastError());
}

static double stopped_ms() {
    float ms;
    CHECK(cudaEventRecord(timing_stops, queue));
    CHECK(cudaEventSynchronize(timing_stops));
    CHECK(cudaEventElapsedTime(&ms, timing_starts, timing_stops));
    return ms;
}

/* The events stand in the same queue as the kernels, so the time between them is the device's own. While the buffer is
 * being overwritten the host runs ahead and queues the work: launching costs nothing in what is measured. */
double device_time_ms(void (*work)(void *), void *context, int warm) {
    const size_t bytes = flush_bytes(); /* which opens the device */
    if (!warm && !flush_buffer)
        CHECK(cudaMalloc(&flush_buffer, bytes));
    ranks_max(0); /* all begin together */
    if (!warm)
        CHECK(cudaMemsetAsync(flush_buffer, 0, bytes, queue));
    CHECK(cudaEventRecord(timing_starts, queue));
    work(context);
    return ranks_max(stopped_ms());
}

static struct {
    cudaGraphExec_t graph;
    void *const *contexts;
} recording;

void device_replay_end(void) {
    if (recording.graph)
        CHECK(cudaGraphExecDestroy(recording.graph));
    recording.graph = nullptr;
    recording.contexts = nullptr;
}

double device_time_replay_ms(void (*work)(void *), void *const *contexts, int count) {
    if (ranks().count > 1) /* messages are not recorded */
        return device_time_ms(work, contexts[0], 1);
    if (recording.contexts != contexts) {
        device_replay_end();
        cudaGraph_t graph;
        CHECK(cudaStreamBeginCapture(queue, cudaStreamCaptureModeGlobal));
        for (int i = 0; i < count; i++)
            work(contexts[i]);
        CHECK(cudaStreamEndCapture(queue, &graph));
        CHECK(cudaGraphInstantiate(&recording.graph, graph, 0));
        CHECK(cudaGraphDestroy(graph));
        CHECK(cudaGraphUpload(recording.graph, queue));
        recording.contexts = contexts;
    }
    CHECK(cudaEventRecord(timing_starts, queue));
    CHECK(cudaGraphLaunch(recording.graph, queue));
    return stopped_ms() / count;
}

/* ---- what the memory gives ---- */

/* Every thread adds up 16-byte pieces, four loads under way at a time; the sum is stored only if it is a number that bytes which
 * are all equal cannot give, so that the compiler cannot leave the loads out. */
static __global__ void read_all(const uint4 *from, size_t count, unsigned *sum) {
    unsigned total = 0;
    size_t step = (size_t)gridDim.x * blockDim.x;
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    for (; i + 3 * step < count; i += 4 * step) {
        uint4 a = from[i], b = from[i + step], c = from[i + 2 * step], d = from[i + 3 * step];
        total += a.x ^ a.y ^ a.z ^ a.w ^ b.x ^ b.y ^ b.z ^ b.w ^ c.x ^ c.y ^ c.z ^ c.w ^ d.x ^ d.y ^ d.z ^ d.w;
    }
    for (; i < count; i += step) {
        uint4 a = from[i];
        total += a.x ^ a.y ^ a.z ^ a.w;
    }
    if (total == 0x12345678)
        *sum = total;
}
static void read_whole(void *context) {
    const Allocation *a = static_cast<Allocation *>(context);
    read_all<<<properties.sm_count * 8, 256, 0, queue>>>(reinterpret_cast<uint4 *>(a->pointer), a->bytes / sizeof(uint4),
                                                         reinterpret_cast<unsigned *>(a->pointer));
    CHECK(cudaGetLastError());
}
static void copy_half(void *context) {
    const Allocation *a = static_cast<Allocation *>(context);
    CHECK(cudaMemcpyAsync(a->pointer, a->pointer + a->bytes / 2, a->bytes / 2, cudaMemcpyDeviceToDevice, queue));
}

/* Of five runs. */
static double best_gbps(void (*work)(void *), Allocation *a) {
    double best_ms = INFINITY;
    for (int run = 0; run < 5; run++)
        best_ms = std::min(best_ms, device_time_ms(work, a, 0));
    return a->bytes / (best_ms * 1e6);
}

Bandwidth device_bandwidth(void) {
    static Bandwidth measured = {-1, -1};
    void *memory = nullptr;
    if (measured.copy_gbps >= 0)
        return measured;
    measured = {0, 0};
    for (size_t bytes = (size_t)1 << 30; !memory && bytes >= 4 * device_properties()->l2_bytes; bytes /= 2)
        memory = device_alloc(bytes, "memory to measure with");
    if (memory) {
        Allocation a = allocations.back();
        measured = {best_gbps(copy_half, &a), best_gbps(read_whole, &a)};
        device_free(memory);
    }
    return measured;
}
