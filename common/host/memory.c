/* memory.c - see memory.h.
 *
 * /proc/self/cgroup has a line "number:controllers:group" for each hierarchy that the process is in. Version 2 has one,
 * without controllers, and a file memory.max in the folder of each group. Version 1 has one whose controllers name memory,
 * and memory.limit_in_bytes. A group is also held to the limits of those above it. Inside a container the group's path may
 * be that of the host, and only the folder at the top is there: it is the container's.
 */
#define _DEFAULT_SOURCE /* sysconf's memory figures */
#include "memory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static size_t kept;

static FILE *open_below_root(const char *folder, const char *group, const char *file) {
    const char *root = getenv("MEMORY_ROOT");
    char path[8192];
    snprintf(path, sizeof path, "%s%s%s/%s", root ? root : "", folder, group, file);
    return fopen(path, "r");
}

/* The lowest limit of the group and those above it, if it is below `bytes`. Cuts `group` down as it goes up. */
static size_t lowest_limit(const char *folder, char *group, const char *name, size_t bytes) {
    for (;;) {
        FILE *file = open_below_root(folder, group, name);
        unsigned long long limit; /* or the word max */
        if (file && fscanf(file, "%llu", &limit) == 1 && limit < bytes)
            bytes = (size_t)limit;
        if (file)
            fclose(file);
        char *slash = strrchr(group, '/');
        if (!slash)
            return bytes;
        *slash = '\0';
    }
}

size_t memory_budget(void) {
    size_t bytes = (size_t)sysconf(_SC_PHYS_PAGES) * (size_t)sysconf(_SC_PAGESIZE);
    FILE *file = open_below_root("/proc/self", "", "cgroup");
    for (char line[4096]; file && fgets(line, sizeof line, file);) {
        char controllers[256] = ",", *start = strchr(line, ':'), *group = start ? strchr(start + 1, ':') : NULL;
        if (!group)
            continue;
        snprintf(controllers, sizeof controllers, ",%.*s,", (int)(group - start - 1), start + 1);
        group[strcspn(group, "\n")] = '\0';
        if (strcmp(controllers, ",,") == 0)
            bytes = lowest_limit("/sys/fs/cgroup", group + 1, "memory.max", bytes);
        else if (strstr(controllers, ",memory,"))
            bytes = lowest_limit("/sys/fs/cgroup/memory", group + 1, "memory.limit_in_bytes", bytes);
    }
    if (file)
        fclose(file);
    return bytes / 8 * 7;
}

void memory_keep_for_host(size_t bytes) { kept = bytes; }

size_t memory_for_device(void) {
    size_t budget = memory_budget();
    return budget > kept ? budget - kept : 0;
}
