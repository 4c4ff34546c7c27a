/* queues_cuda.cu - several GPUs of one host, driven by one thread (device.h). Every call here only puts work into a
 * stream, but for those that open the GPUs or read a clock. */
#include "device.h"

#include "cuda_check.h"

#include <algorithm>
#include <cstring>

cudaStream_t queue_in_use;

static struct {
    cudaStream_t queues[2];
    cudaEvent_t events[MAX_EVENTS], ends[2];
    int forks[MAX_EVENTS]; /* how many there were when the event was recorded last */
} opened[MAX_DEVICES];
static cudaEvent_t starts; /* on device 0 */
static int here;           /* device_use; -1: none, since other devices were opened */
static int opened_count, fork_count;
static double link_bytes[MAX_DEVICES][MAX_DEVICES];

/* CUDA's number of a device: those behind the one that --device named follow it, then those before it. */
static int number_of(int device) {
    static int first = -1;
    if (first < 0)
        CHECK(cudaGetDevice(&first));
    return (first + device) % device_count();
}

int device_peers(void) { return std::min(device_count(), (int)MAX_DEVICES); }

/* Copies take the way over the host where one GPU cannot reach another's memory: an address says which GPU it is on. */
static void reach(int device, int other) {
    int can;
    CHECK(cudaDeviceCanAccessPeer(&can, number_of(device), number_of(other)));
    cudaError_t error = can ? cudaDeviceEnablePeerAccess(number_of(other), 0) : cudaSuccess;
    if (error == cudaErrorPeerAccessAlreadyEnabled)
        cudaGetLastError(); /* or the next launch would be blamed */
    else
        CHECK(error);
}

static void open_until(int device) {
    number_of(0);
    for (; opened_count <= device; opened_count++) {
        auto &d = opened[opened_count];
        if (opened_count == 0) {
            d.queues[COMPUTE] = static_cast<cudaStream_t>(device_stream());
            CHECK(cudaEventCreateWithFlags(&starts, cudaEventDisableTiming));
        }
        CHECK(cudaSetDevice(number_of(opened_count)));
        if (opened_count > 0)
            CHECK(cudaStreamCreate(&d.queues[COMPUTE]));
        CHECK(cudaStreamCreate(&d.queues[COPY]));
        for (cudaEvent_t &event : d.events)
            CHECK(cudaEventCreate(&event));
        for (cudaEvent_t &end : d.ends)
            CHECK(cudaEventCreateWithFlags(&end, cudaEventDisableTiming));
        for (int other = 0; other < opened_count; other++) {
            reach(opened_count, other);
            CHECK(cudaSetDevice(number_of(other)));
            reach(other, opened_count);
            CHECK(cudaSetDevice(number_of(opened_count)));
        }
        here = -1;
    }
}

void device_use(int device) {
    if (device == here && device < opened_count)
        return;
    if (device == 0 && opened_count == 0)
        return; /* nothing else was ever used */
    open_until(device);
    here = device;
    CHECK(cudaSetDevice(number_of(device)));
    queue_in_use = opened[device].queues[COMPUTE];
}

void device_fork(int devices) {
    open_until(devices - 1);
    fork_count++;
    memset(link_bytes, 0, sizeof link_bytes);
    device_use(0);
    CHECK(cudaEventRecord(starts, opened[0].queues[COMPUTE]));
    for (int d = 0; d < devices; d++) {
        device_use(d);
        for (int q = d == 0 ? COPY : COMPUTE; q <= COPY; q++)
            CHECK(cudaStreamWaitEvent(opened[d].queues[q], starts, 0));
    }
    device_use(0);
}

void device_join(int devices) {
    for (int d = 0; d < devices; d++) {
        device_use(d);
        for (int q = d == 0 ? COPY : COMPUTE; q <= COPY; q++) {
            CHECK(cudaEventRecord(opened[d].ends[q], opened[d].queues[q]));
            CHECK(cudaStreamWaitEvent(opened[0].queues[COMPUTE], opened[d].ends[q], 0));
        }
    }
    device_use(0);
}

void device_pull(void *to, size_t to_pitch, int from_device, const void *from, size_t from_pitch, size_t bytes,
                 size_t rows) {
    const cudaStream_t queue = opened[here].queues[COPY];
    if (bytes == 0 || rows == 0)
        return;
    link_bytes[from_device][here] += (double)bytes * (double)rows;
    if (bytes == to_pitch && bytes == from_pitch)
        CHECK(cudaMemcpyAsync(to, from, bytes * rows, cudaMemcpyDefault, queue));
    else
        CHECK(cudaMemcpy2DAsync(to, to_pitch, from, from_pitch, bytes, rows, cudaMemcpyDefault, queue));
}

void device_record(Queue queue, int event) {
    opened[here].forks[event] = fork_count;
    CHECK(cudaEventRecord(opened[here].events[event], opened[here].queues[queue]));
}

/* What was recorded before the last fork has been reached: all queues have waited for it. */
void device_wait(Queue queue, int device, int event) {
    if (opened[device].forks[event] == fork_count)
        CHECK(cudaStreamWaitEvent(opened[here].queues[queue], opened[device].events[event], 0));
}

double device_busy_ms(int device) {
    const auto &d = opened[device];
    double sum = 0;
    for (int round = 0; round < MAX_DEVICES; round++)
        if (d.forks[END + round] == fork_count) {
            float ms;
            CHECK(cudaEventSynchronize(d.events[END + round]));
            CHECK(cudaEventElapsedTime(&ms, d.events[BEGIN + round], d.events[END + round]));
            sum += ms;
        }
    return sum;
}

double device_link_bytes(int from, int to) { return link_bytes[from][to]; }
