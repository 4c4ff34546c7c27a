/* memory.c - see memory.h. */
#define _DEFAULT_SOURCE /* sysconf's memory figures */
#include "memory.h"

#include "errors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void *there(void *memory, size_t count, size_t size) {
    if (!memory)
        cannot_run("out of host memory: %.1f MiB more are needed", (double)count * (double)size / 0x1p20);
    return memory;
}

void *host_alloc(size_t count, size_t size) { return there(calloc(count ? count : 1, size), count, size); }

void *host_resize(void *memory, size_t count, size_t size) { return there(realloc(memory, count * size), count, size); }

static FILE *open_below_root(const char *folder, const char *group, const char *file) {
    const char *root = getenv("MEMORY_ROOT");
    char path[8192];
    snprintf(path, sizeof path, "%s%s%s/%s", root ? root : "", folder, group, file);
    return fopen(path, "r");
}

/* The limit that a group's file holds, if it is below `bytes`. There may be no file, or a word in it: then there is no limit. */
static size_t lower(size_t bytes, const char *folder, const char *group, const char *name) {
    FILE *file = open_below_root(folder, group, name);
    unsigned long long limit;
    if (file && fscanf(file, "%llu", &limit) == 1 && limit < bytes)
        bytes = (size_t)limit;
    if (file)
        fclose(file);
    return bytes;
}

/* The process is in the groups behind the last colon of each line, and in those above them. Inside a container a group's
 * path may be that of the host, and only the folder at the top is there: it is the container's. */
size_t memory_read_budget(void) {
    size_t bytes = (size_t)sysconf(_SC_PHYS_PAGES) * (size_t)sysconf(_SC_PAGESIZE);
    FILE *file = open_below_root("/proc/self", "", "cgroup");
    for (char line[4096]; file && fgets(line, sizeof line, file);) {
        char *group = strrchr(line, ':'), *end = strchr(line, '\n');
        for (; group && end; end = strrchr(group, '/')) {
            *end = '\0';
            bytes = lower(bytes, "/sys/fs/cgroup", group + 1, "memory.max"); /* version 2 of cgroups, and 1 */
            bytes = lower(bytes, "/sys/fs/cgroup/memory", group + 1, "memory.limit_in_bytes");
        }
    }
    if (file)
        fclose(file);
    return bytes / 8 * 7;
}

size_t memory_budget(void) {
    static size_t budget;
    return budget ? budget : (budget = memory_read_budget());
}

static size_t kept;

void memory_keep_for_host(size_t bytes) { kept = bytes; }

size_t memory_for_device(void) {
    size_t budget = memory_budget();
    return budget > kept ? budget - kept : 0;
}
