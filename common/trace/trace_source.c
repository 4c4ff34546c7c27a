/* trace_source.c - from a place in the program to a line of source.
 *
 * The compiler's debug information knows the line of each instruction, and which functions were inlined around it. binutils'
 * addr2line reads it: one child process for all sites. (Wherever gcc is, binutils are: gcc assembles and links with them.)
 * The trace build links without -pie, so that an address in the running program is an address in its file.
 */
#include "trace_internal.h"

#include "../host/memory.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* One line of the answer, "tile.cuh:64" or "tile.cuh:64 (discriminator 2)", without what follows the number. */
static void trim(char *frame) { frame[strcspn(frame, " \n")] = 0; }

/* Does this frame belong to the CUDA words, the twins or conversions, where nobody looks for a mistake? */
static int is_below_kernels(const char *frame) {
    return strstr(frame, "_cpu.h:") || strncmp(frame, "numeric.h:", 10) == 0 || strncmp(frame, "kernel.cuh:", 11) == 0;
}

static int same_file(const char *a, const char *b) {
    size_t length = strcspn(a, ":");
    return length == strcspn(b, ":") && strncmp(a, b, length) == 0;
}

/* Frames come innermost first: the line itself, then where that function was inlined. Keeps the first that is no twin, and
 * if that is in a header also the first in a kernel's file. */
static void add_frame(char *line, char *inner, const char *frame) {
    if (!*inner && is_below_kernels(frame))
        return;
    if (!*inner)
        snprintf(inner, TRACE_LINE / 2, "%.60s", frame);
    if (strstr(line, ".cu:"))
        return;
    if (same_file(inner, frame))
        snprintf(line, TRACE_LINE, "%s", inner);
    else
        snprintf(line, TRACE_LINE, "%s in %.60s", inner, frame);
}

void source_lines(const Site *sites, int count, SourceLine *lines) {
    char program[512];
    ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
    size_t size = sizeof program + 64 + 20 * (size_t)count;
    char *command = host_alloc(size, 1);
    program[length < 0 ? 0 : length] = 0;
    size_t used = (size_t)snprintf(command, size, "addr2line --addresses --inlines --basenames --exe '%s'", program);
    for (int i = 0; i < count; i++) {
        /* the return address is one instruction after the access */
        uintptr_t address = (uintptr_t)sites[i].place - 1;
        used += (size_t)snprintf(command + used, size - used, " 0x%zx", (size_t)address);
        snprintf(lines[i], TRACE_LINE, "0x%zx", (size_t)address);
    }

    FILE *answer = popen(command, "r");
    char frame[512], inner[TRACE_LINE / 2] = "";
    for (int i = -1; answer && fgets(frame, sizeof frame, answer);) {
        trim(frame);
        if (strncmp(frame, "0x", 2) == 0) /* the next address */
            i++, inner[0] = 0;
        else if (i >= 0 && i < count && frame[0] != '?')
            add_frame(lines[i], inner, frame);
    }
    if (answer)
        pclose(answer);
    free(command);
}
