/* device_cuda.cu - device.h on an NVIDIA GPU, through the CUDA runtime. Needs CUDA Toolkit 12.4 or later. */
#include "device.h"

#include "../host/errors.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

/* The kernel launched last: a launch returns before the kernel runs, so a failure is noticed later, elsewhere. */
static struct {
    const char *kernel, *file;
    int line;
} last_launch;

static void check(cudaError_t error, const char *call, const char *file, int line) {
    if (error == cudaSuccess)
        return;
    fprintf(stderr, "%s:%d: %s: %s", file, line, call, cudaGetErrorString(error));
    if (last_launch.kernel)
        fprintf(stderr, " (last launch: %s, %s:%d)", last_launch.kernel, last_launch.file, last_launch.line);
    fprintf(stderr, "\n");
    exit(2);
}
#define CHECK(call) check(call, #call, __FILE__, __LINE__)

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
        cannot_run("this program holds no code that this GPU can run: build it with ARCH=%d (%s)", chip,
                   cudaGetErrorString(error));
    CHECK(error);
    return attributes.ptxVersion;
}

static int attribute(cudaDeviceAttr name, int device) {
    int value = 0;
    CHECK(cudaDeviceGetAttribute(&value, name, device));
    return value;
}

static int chosen = -1; /* CUDA's own choice */
void device_choose(int number) { chosen = number; }

int device_count(void) {
    int count = 0;
    cudaError_t error = cudaGetDeviceCount(&count);
    if (error != cudaSuccess || count == 0)
        cannot_run("no NVIDIA GPU can be used here (%s): build with DEVICE=cpu",
                   error == cudaSuccess ? "none found" : cudaGetErrorString(error));
    return count;
}

static void open_device(void) {
    int device = 0, version = 0;
    device_count();
    if (chosen >= 0)
        CHECK(cudaSetDevice(chosen));
    CHECK(cudaGetDevice(&device));
    cudaDeviceProp chip;
    CHECK(cudaGetDeviceProperties(&chip, device));
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
    p.clock_mhz = attribute(cudaDevAttrClockRate, device) / 1000; /* kHz; CUDA 13 no longer has it in cudaDeviceProp */
    CHECK(cudaMemcpyFromSymbol(&p.has_hopper, hopper_code, sizeof p.has_hopper));
    p.shared_bytes = (size_t)attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
    p.l2_bytes = (size_t)chip.l2CacheSize;
    p.memory_bytes = chip.totalGlobalMem;
}

const DeviceProperties *device_properties(void) {
    if (!properties.sm_count)
        open_device();
    return &properties;
}

/* ---- a cold L2 ---- */

/* Before each timed run a buffer twice the size of L2 is overwritten, which drives everything else out of it. */
static void *flush_buffer;
static size_t flush_bytes(void) { return std::max(2 * device_properties()->l2_bytes, (size_t)128 << 20); }

/* ---- memory ---- */

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

/* Left free for the flush buffer, and for what the driver takes for kernels' stacks when they are first launched. */
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
    CHECK(cudaMemset(pointer, 0xff, bytes));
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
        cannot_run("device_free: %p is not allocated: never was, or was freed before", pointer);
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
void device_poison(void *device, size_t bytes) { CHECK(cudaMemset(device, 0xff, bytes)); }

/* ---- launches and time ---- */

/* All kernels go into one queue of our own, since what goes into CUDA's default one cannot be recorded as a graph. It is a
 * blocking stream: it waits for the default one, where copies and memsets go, and the default one for it. */
void *device_stream(void) {
    static cudaStream_t stream;
    if (!stream)
        CHECK(cudaStreamCreate(&stream));
    return stream;
}
static cudaStream_t queue() { return static_cast<cudaStream_t>(device_stream()); }

void device_check_launch(const char *kernel, const char *file, int line) {
    last_launch = {kernel, file, line};
    CHECK(cudaGetLastError());
}

void device_synchronize(void) { CHECK(cudaDeviceSynchronize()); }

static struct {
    cudaEvent_t start, stop;
} events;

static void record_start() {
    if (!events.start) {
        CHECK(cudaEventCreate(&events.start));
        CHECK(cudaEventCreate(&events.stop));
    }
    CHECK(cudaEventRecord(events.start, queue()));
}
static double record_stop() {
    float ms;
    CHECK(cudaEventRecord(events.stop, queue()));
    CHECK(cudaEventSynchronize(events.stop));
    CHECK(cudaEventElapsedTime(&ms, events.start, events.stop));
    return ms;
}

static void flush_l2() {
    if (!flush_buffer)
        CHECK(cudaMalloc(&flush_buffer, flush_bytes()));
    CHECK(cudaMemsetAsync(flush_buffer, 0, flush_bytes(), queue()));
}

/* The events stand in the same queue as the kernels, so the time between them is the device's own. While the buffer is
 * being overwritten the host runs ahead and queues the work: launching costs nothing in what is measured. */
double device_time_ms(void (*work)(void *), void *context, int warm) {
    if (!warm)
        flush_l2();
    record_start();
    work(context);
    return record_stop();
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
    if (recording.contexts != contexts) {
        device_replay_end();
        cudaGraph_t graph;
        CHECK(cudaStreamBeginCapture(queue(), cudaStreamCaptureModeGlobal));
        for (int i = 0; i < count; i++)
            work(contexts[i]);
        CHECK(cudaStreamEndCapture(queue(), &graph));
        CHECK(cudaGraphInstantiate(&recording.graph, graph, 0));
        CHECK(cudaGraphDestroy(graph));
        CHECK(cudaGraphUpload(recording.graph, queue()));
        recording.contexts = contexts;
    }
    record_start();
    CHECK(cudaGraphLaunch(recording.graph, queue()));
    return record_stop() / count;
}

/* ---- what the memory gives ---- */

/* Every thread adds up 16-byte pieces, four loads under way at a time; the sum is stored only if it is a number that bytes of
 * zeros cannot give, so that the compiler cannot leave the loads out. */
static __global__ void read_all(const uint4 *from, size_t count, unsigned *sum) {
    unsigned total = 0;
    size_t step = (size_t)gridDim.x * blockDim.x;
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    for (; i + 3 * step < count; i += 4 * step) {
        uint4 a = from[i], b = from[i + step], c = from[i + 2 * step], d = from[i + 3 * step];
        total += a.x ^ a.y ^ a.z ^ a.w ^ b.x ^ b.y ^ b.z ^ b.w ^ c.x ^ c.y ^ c.z ^ c.w ^ d.x ^ d.y ^ d.z ^ d.w;
    }
    if (total == 0x12345678)
        *sum = total;
}

static double best_gbps(double bytes, void (*work)(void *, size_t), void *buffer, size_t size) {
    double best = 0;
    for (int run = 0; run < 5; run++) {
        flush_l2();
        record_start();
        work(buffer, size);
        best = std::max(best, bytes / (record_stop() * 1e6));
    }
    return best;
}
static void copy_half(void *buffer, size_t size) {
    CHECK(cudaMemcpyAsync(buffer, static_cast<char *>(buffer) + size / 2, size / 2, cudaMemcpyDeviceToDevice, queue()));
}
static void read_whole(void *buffer, size_t size) {
    read_all<<<properties.sm_count * 8, 256, 0, queue()>>>(static_cast<uint4 *>(buffer), size / sizeof(uint4),
                                                           static_cast<unsigned *>(buffer));
    CHECK(cudaGetLastError());
}

Bandwidth device_bandwidth(void) {
    static Bandwidth measured;
    static bool done;
    if (done)
        return measured;
    done = true;
    for (size_t size = (size_t)1 << 30; size >= 4 * device_properties()->l2_bytes; size /= 2) {
        void *buffer;
        if (cudaMalloc(&buffer, size) == cudaSuccess) {
            CHECK(cudaMemset(buffer, 0, size));
            measured = {best_gbps((double)size, copy_half, buffer, size), best_gbps((double)size, read_whole, buffer, size)};
            CHECK(cudaFree(buffer));
            break;
        }
        cudaGetLastError(); /* too large: not the next launch's fault */
    }
    return measured;
}
