/* queues_cuda.cu - several GPUs of one host, driven by one thread (device.h). Every call here only puts work into a
 * stream, except for those that open the GPUs or read a clock.
 *
 * With one process per GPU (ranks.h) all processes make the calls of all devices, and each does what concerns its own GPU: a
 * device that pulls receives, and the device that it pulls from sends. Whoever waits for another device's event waits for its
 * message instead, as the sender has waited before it sends. */
#include "device.h"

#include "cuda_check.h"
#include "ranks.h"

#include <algorithm>
#include <cstring>

cudaStream_t queue_in_use;

static struct Opened {
    cudaStream_t queues[2];
    cudaEvent_t events[MAX_EVENTS], ends[2];
    int forks[MAX_EVENTS]; /* how many there were when the event was recorded last */
} opened[MAX_DEVICES];
static cudaEvent_t starts; /* on the first device that this process drives */
static int here;           /* device_use; -1: none, since other devices were opened */
static int opened_count, fork_count;
static double link_bytes[MAX_DEVICES][MAX_DEVICES];

static int first_here(void) { return ranks().number; }
static bool is_here(int device) { return ranks().count == 1 || device == ranks().number; }

/* CUDA's number of a device: those behind the one that --device named follow it, then those before it. */
static int number_of(int device) {
    static int first = -1;
    if (first < 0)
        CHECK(cudaGetDevice(&first));
    return ranks().count > 1 ? first : (first + device) % device_count();
}

int device_peers(void) { return ranks().count > 1 ? ranks().count : std::min(device_count(), (int)MAX_DEVICES); }

/* Lets a GPU read another's memory directly. Where it cannot, CUDA copies by way of the host. */
static void reach(int device, int other) {
    int can;
    CHECK(cudaSetDevice(number_of(device)));
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
        CHECK(cudaSetDevice(number_of(opened_count)));
        for (cudaEvent_t &event : d.events)
            CHECK(cudaEventCreate(&event));
        here = -1;
        if (!is_here(opened_count))
            continue;
        for (int other = 0; other < opened_count && is_here(other); other++)
            reach(opened_count, other), reach(other, opened_count);
        CHECK(cudaSetDevice(number_of(opened_count)));
        if (opened_count == first_here()) {
            d.queues[COMPUTE] = static_cast<cudaStream_t>(device_stream());
            CHECK(cudaEventCreateWithFlags(&starts, cudaEventDisableTiming));
        } else {
            CHECK(cudaStreamCreate(&d.queues[COMPUTE]));
        }
        CHECK(cudaStreamCreate(&d.queues[COPY]));
        for (cudaEvent_t &end : d.ends)
            CHECK(cudaEventCreateWithFlags(&end, cudaEventDisableTiming));
    }
}

int device_use(int device) {
    if (device == 0 && opened_count == 0)
        return is_here(0); /* nothing else was ever used */
    if (device != here || device >= opened_count) {
        open_until(device);
        here = device;
        CHECK(cudaSetDevice(number_of(device)));
        queue_in_use = opened[device].queues[COMPUTE];
    }
    return is_here(device);
}

/* Calls work(d, q) for each queue of this process except COMPUTE of its first device, which starts and ends all others. */
template <typename Work> static void for_other_queues(int devices, Work work) {
    for (int d = 0; d < devices; d++)
        if (device_use(d))
            for (int q = d == first_here() ? COPY : COMPUTE; q <= COPY; q++)
                work(opened[d], q);
    device_use(0);
}

void device_fork(int devices) {
    open_until(devices - 1);
    fork_count++;
    memset(link_bytes, 0, sizeof link_bytes);
    device_use(first_here());
    CHECK(cudaEventRecord(starts, opened[first_here()].queues[COMPUTE]));
    for_other_queues(devices, [](Opened &d, int q) { CHECK(cudaStreamWaitEvent(d.queues[q], starts, 0)); });
}

void device_join(int devices) {
    for_other_queues(devices, [](Opened &d, int q) {
        CHECK(cudaEventRecord(d.ends[q], d.queues[q]));
        CHECK(cudaStreamWaitEvent(opened[first_here()].queues[COMPUTE], d.ends[q], 0));
    });
}

/* ---- copies ---- */

/* A message per row. */
static void send_or_receive(char *memory, size_t pitch, int other, size_t bytes, size_t rows, int sends) {
    for (size_t row = 0; row < rows; row++)
        ranks_message(memory + row * pitch, bytes, other, sends, opened[ranks().number].queues[COPY]);
}

void device_pull(void *to, size_t to_pitch, int from_device, const void *from, size_t from_pitch, size_t bytes,
                 size_t rows) {
    const cudaStream_t queue = opened[here].queues[COPY];
    if (bytes == 0 || rows == 0)
        return;
    link_bytes[from_device][here] += (double)bytes * (double)rows;
    if (bytes == to_pitch && bytes == from_pitch) /* rows that follow each other are one */
        bytes = to_pitch = from_pitch = bytes * rows, rows = 1;
    if (ranks().count > 1 && from_device != here) {
        if (here == ranks().number)
            send_or_receive((char *)to, to_pitch, from_device, bytes, rows, 0);
        else if (from_device == ranks().number)
            send_or_receive((char *)from, from_pitch, here, bytes, rows, 1);
    } else if (is_here(here)) {
        if (rows == 1) /* a pitch may not be as large as a copy may be */
            CHECK(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, queue));
        else
            CHECK(cudaMemcpy2DAsync(to, to_pitch, from, from_pitch, bytes, rows, cudaMemcpyDefault, queue));
    }
}

/* NCCL starts the messages of a group only when the group ends, so the events that follow them are recorded then. */
static struct { int device, event; } recorded_later[MAX_DEVICES * MAX_EVENTS];
static int later_count, is_together;

static void record(int device, Queue queue, int event) {
    const int owner = is_here(device) ? device : first_here();
    CHECK(cudaEventRecord(opened[device].events[event], opened[owner].queues[queue]));
}

void device_pull_together(int begins) {
    is_together = begins && ranks().count > 1;
    ranks_group(begins);
    for (; !begins && later_count > 0; later_count--)
        record(recorded_later[later_count - 1].device, COPY, recorded_later[later_count - 1].event);
}

/* What another rank records in COPY comes after messages that may be ours. */
void device_record(Queue queue, int event) {
    if (!is_here(here) && queue == COMPUTE)
        return;
    opened[here].forks[event] = fork_count;
    if (queue == COPY && is_together)
        recorded_later[later_count++] = {here, event};
    else
        record(here, queue, event);
}

/* What was recorded before the last fork has been reached: all queues have waited for it. */
void device_wait(Queue queue, int device, int event) {
    const int waits = is_here(here) ? here : queue == COPY && is_here(device) ? device : -1;
    if (waits >= 0 && opened[device].forks[event] == fork_count)
        CHECK(cudaStreamWaitEvent(opened[waits].queues[queue], opened[device].events[event], 0));
}

double device_busy_ms(int device) {
    const auto &d = opened[device];
    double sum = 0;
    for (int round = 0; round < MAX_DEVICES && is_here(device); round++)
        if (d.forks[END + round] == fork_count) {
            float ms;
            CHECK(cudaEventSynchronize(d.events[END + round]));
            CHECK(cudaEventElapsedTime(&ms, d.events[BEGIN + round], d.events[END + round]));
            sum += ms;
        }
    return ranks_max(sum);
}

double device_link_bytes(int from, int to) { return link_bytes[from][to]; }
