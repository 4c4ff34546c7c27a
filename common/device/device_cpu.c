/* device_cpu.c - device.h on this computer: device memory is ordinary memory, kernels run on the cores (cpu/simt.h). */
#ifndef __APPLE__
#define _GNU_SOURCE
#endif
#include "device.h"
#include "../cpu/simt.h"
#include "../cpu/trace_hooks.h"
#include "../host/errors.h"
#include "../host/memory.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
    ALIGNMENT = 256, /* what cudaMalloc gives */
    GUARD_BYTES = 256,
};

/* NaN in fp32, fp16, bf16 and e5m2, so that what reads past the end shows it, and not the NaN that fills fresh memory. */
static unsigned char guard_byte(int i) { return i % 2 ? 0xff : 0xfd; }

typedef struct Allocation {
    struct Allocation *next;
    unsigned char *pointer;
    size_t bytes;
    char purpose[64];
} Allocation;

static Allocation *allocations;
static size_t allocated;

/* The processor's name as Linux tells it. */
static void find_name(char *name, size_t size) {
    snprintf(name, size, "CPU");
    FILE *file = fopen("/proc/cpuinfo", "r");
    if (!file)
        return;
    char text[256];
    while (fgets(text, sizeof text, file)) {
        const char *colon = strchr(text, ':');
        if (strncmp(text, "model name", 10) != 0 || !colon || colon[1] != ' ')
            continue;
        snprintf(name, size, "%s", colon + 2);
        name[strcspn(name, "\n")] = 0;
        break;
    }
    fclose(file);
}

int device_count(void) { return 1; }
void device_choose(int number) { (void)number; }

const DeviceProperties *device_properties(void) {
    static DeviceProperties properties;
    if (properties.sm_count == 0) {
        find_name(properties.name, sizeof properties.name);
        properties.is_cpu = 1;
        properties.capability = 80; /* what instructions_cpu.h has twins for */
        properties.sm_count = simt_workers();
        properties.shared_bytes = simt_shared_bytes();
        properties.memory_bytes = memory_for_device();
        properties.has_hopper = properties.shared_bytes == SIMT_SHARED_LIMIT; /* of wgmma and TMA, too: hopper_cpu.h */
        snprintf(properties.platform, sizeof properties.platform, "CPU device · %d core%s", properties.sm_count,
                 properties.sm_count == 1 ? "" : "s");
    }
    return &properties;
}

void *device_alloc(size_t bytes, const char *purpose) {
    size_t limit = memory_for_device();
    if (bytes > limit || limit - bytes < allocated)
        return NULL;
    Allocation *a = malloc(sizeof *a);
    void *pointer;
    if (!a || posix_memalign(&pointer, ALIGNMENT, bytes + GUARD_BYTES) != 0) {
        free(a);
        return NULL;
    }
    *a = (Allocation){allocations, pointer, bytes, ""};
    snprintf(a->purpose, sizeof a->purpose, "%s", purpose);
    memset(a->pointer, 0xff, bytes);
    for (int i = 0; i < GUARD_BYTES; i++)
        a->pointer[bytes + i] = guard_byte(i);
    simt_forbid(a->pointer + bytes, GUARD_BYTES);
    allocations = a;
    allocated += bytes;
    return pointer;
}

void device_free(void *pointer) {
    if (!pointer)
        return;
    for (Allocation **link = &allocations; *link; link = &(*link)->next) {
        Allocation *a = *link;
        if (a->pointer != pointer)
            continue;
        *link = a->next;
        allocated -= a->bytes;
        free(a->pointer);
        free(a);
        return;
    }
    cannot_run("device_free: %p is not allocated: never was, or was freed before", pointer);
}

size_t device_allocated(void) { return allocated; }

#ifdef TRACE
void device_each_allocation(void (*visit)(const char *purpose, void *pointer, size_t bytes)) {
    for (const Allocation *a = allocations; a; a = a->next)
        visit(a->purpose, a->pointer, a->bytes);
}
#endif

/* Touches what is forbidden, so the address sanitizer must look away. */
__attribute__((no_sanitize("address"))) const char *device_damaged(void) {
    for (const Allocation *a = allocations; a; a = a->next) {
        int damaged = 0;
        for (int i = 0; i < GUARD_BYTES; i++) {
            volatile unsigned char *byte = a->pointer + a->bytes + i;
            if (*byte != guard_byte(i)) {
                damaged = 1;
                *byte = guard_byte(i);
            }
        }
        if (damaged)
            return a->purpose;
    }
    return NULL;
}

void device_write(void *device, const void *host, size_t bytes) { memcpy(device, host, bytes); }
void device_read(void *host, const void *device, size_t bytes) { memcpy(host, device, bytes); }
void device_poison(void *device, size_t bytes) { memset(device, 0xff, bytes); }

void device_synchronize(void) {} /* a launch returns when the grid has run */

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

int device_order(int order) { return simt_choose_order(order); }

void *device_stream(void) { return NULL; }

/* Kernels here are far from what memory gives, so it says nothing about them. */
Bandwidth device_bandwidth(void) { return (Bandwidth){0, 0}; }

void device_check_launch(const char *kernel, const char *file, int line) {
    (void)kernel, (void)file, (void)line; /* simt_launch has ended the program if anything was wrong */
}
