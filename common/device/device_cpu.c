/* device_cpu.c - device.h on this computer: device memory is ordinary memory, kernels run on the cores (cpu/simt.h). */
#define _POSIX_C_SOURCE 200809L
#include "device.h"
#include "../cpu/simt.h"
#include "../host/errors.h"
#include "../host/memory.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

/* An allocation has pages of its own, between gaps that nobody can touch. It ends where they end, but for its alignment. What of
 * them lies before it and behind it is the guard strip. */
enum { ALIGNMENT = 256 /* what cudaMalloc gives */, GAP = 1 << 20 };

/* The processor's name as Linux tells it. */
static void find_name(char name[128]) {
    char line[256];
    FILE *file = fopen("/proc/cpuinfo", "r");
    strcpy(name, "CPU");
    while (file && fgets(line, sizeof line, file) && sscanf(line, "model name : %127[^\n]", name) != 1)
        ;
    if (file)
        fclose(file);
}

int device_count(void) { return 1; }
void device_choose(int number) { (void)number; }
int device_join_ranks(const char *file) {
    (void)file;
    cannot_run("--rendezvous: the CPU device simulates all devices in one process; build with DEVICE=cuda");
}

const DeviceProperties *device_properties(void) {
    static DeviceProperties properties;
    const int first = !properties.capability;
    properties.sm_count = simt_workers(); /* while a chip is simulated, its own */
    if (first) {
        find_name(properties.name);
        properties.is_cpu = 1;
        properties.capability = 80; /* what instructions_cpu.h has twins for */
        properties.shared_bytes = simt_shared_bytes();
        properties.memory_bytes = memory_for_device();
        properties.has_hopper = properties.shared_bytes == SIMT_SHARED_LIMIT; /* of wgmma and TMA, too: hopper_cpu.h */
        snprintf(properties.platform, sizeof properties.platform, "CPU device, %d core%s", properties.sm_count,
                 properties.sm_count == 1 ? "" : "s");
    }
    return &properties;
}

/* NaN in fp32, fp16, bf16 and e5m2, so that what reads it shows it, and not the NaN that fills fresh memory. Touches what is
 * forbidden, so the address sanitizer must look away. */
__attribute__((no_sanitize("address"))) static int mend(unsigned char *from, const unsigned char *to) {
    int damaged = 0;
    for (; from < to; from++) {
        const unsigned char guard = (uintptr_t)from % 2 ? 0xff : 0xfd;
        damaged |= *from != guard;
        *from = guard;
    }
    return damaged;
}
static int is_damaged(const SimtAllocation *a) {
    return mend(a->pages, a->pointer) | mend(a->pointer + a->bytes, a->pages + a->page_bytes);
}

static size_t round_up(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

size_t device_allocated(void) {
    size_t bytes = 0;
    for (const SimtAllocation *a = simt_allocations; a; a = a->next)
        bytes += a->bytes;
    return bytes;
}

void *device_alloc(size_t bytes, const char *purpose) {
    size_t limit = memory_for_device();
    if (bytes > limit || limit - bytes < device_allocated())
        return NULL;
    size_t page_bytes = round_up(bytes, (size_t)sysconf(_SC_PAGESIZE));
    SimtAllocation *a = malloc(sizeof *a);
    unsigned char *pages = a ? simt_map(page_bytes, GAP) : NULL;
    if (!pages) {
        free(a);
        return NULL;
    }
    *a = (SimtAllocation){simt_allocations, pages, pages + page_bytes - round_up(bytes, ALIGNMENT), page_bytes, bytes, ""};
    snprintf(a->purpose, sizeof a->purpose, "%s", purpose);
    memset(a->pointer, 0xff, bytes);
    is_damaged(a);
    simt_allow_only(a->pointer, bytes, pages, page_bytes);
    simt_allocations = a;
    return a->pointer;
}

void device_free(void *pointer) {
    if (!pointer)
        return;
    for (SimtAllocation **link = &simt_allocations; *link; link = &(*link)->next) {
        SimtAllocation *a = *link;
        if (a->pointer != pointer)
            continue;
        *link = a->next;
        simt_allow_only(a->pages, a->page_bytes, a->pages, a->page_bytes);
        munmap(a->pages - GAP, GAP + a->page_bytes + GAP);
        free(a);
        return;
    }
    cannot_run("device_free: %p was never allocated, or has already been freed", pointer);
}

const char *device_damaged(void) {
    for (const SimtAllocation *a = simt_allocations; a; a = a->next)
        if (is_damaged(a))
            return a->purpose;
    return NULL;
}

void device_write(void *device, const void *host, size_t bytes) { memcpy(device, host, bytes); }
void device_read(void *host, const void *device, size_t bytes) { memcpy(host, device, bytes); }
void device_fill(void *device, int byte, size_t bytes) { memset(device, byte, bytes); }

static double now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1e3 + now.tv_nsec * 1e-6;
}

/* Caches are left as they are: `work` is long compared with filling them. */
double device_time_ms(void (*work)(void *), void *context, int warm) {
    (void)warm;
    double begin = now_ms();
    work(context);
    return now_ms() - begin;
}

/* Nothing to record: launching costs nothing beside running. */
double device_time_replay_ms(void (*work)(void *), void *const *contexts, int count) {
    double begin = now_ms();
    for (int i = 0; i < count; i++)
        work(contexts[i]);
    return (now_ms() - begin) / count;
}
void device_replay_end(void) {}

/* Kernels here are far from what memory gives, so it says nothing about them. */
Bandwidth device_bandwidth(void) { return (Bandwidth){0, 0}; }
