/* trace_site.c - which tensor an address belongs to, which site touches it, and which source line that is.
 *
 * The compiler's debug information knows the line of each instruction, and which functions were inlined around it. binutils'
 * addr2line reads it: one child process for all sites. (Wherever gcc is, binutils are: gcc assembles and links with them.)
 * The trace build links without -pie, so that an address in the running program is an address in its file.
 */
#include "trace_internal.h"

#include "../host/memory.h"
#include "../host/errors.h"

#include <limits.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

TracedTensor trace_tensors[MAX_TENSORS];
int trace_tensor_count;
Site trace_sites[MAX_SITES];
int trace_site_count;

void list_tensors(void) {
    trace_tensors[SHARED_TENSOR] = (TracedTensor){.memory.purpose = SHARED_MEMORY_NAME};
    trace_tensor_count = 1;
    for (const SimtAllocation *a = simt_allocations; a; a = a->next) {
        if (trace_tensor_count == MAX_TENSORS)
            cannot_run("trace: more than %d device allocations", MAX_TENSORS - 1);
        trace_tensors[trace_tensor_count++] = (TracedTensor){.memory = *a};
    }
}

int find_tensor(const char *byte) {
    for (int i = SHARED_TENSOR + 1; i < trace_tensor_count; i++)
        if ((size_t)(byte - (char *)trace_tensors[i].memory.pages) < trace_tensors[i].memory.page_bytes)
            return i;
    return -1;
}

/* A hash table with open addressing: site number + 1, 0 where free. */
enum { TABLE_SIZE = 4 * MAX_SITES };
static uint16_t site_table[TABLE_SIZE];

int find_site(const void *place, int tensor, SiteKind kind) {
    size_t slot = ((uintptr_t)place * 0x9e3779b97f4a7c15u >> 32) % TABLE_SIZE; /* Fibonacci hashing */
    for (int number;; slot = (slot + 1) % TABLE_SIZE) {
        if ((number = site_table[slot] - 1) < 0) {
            if ((number = trace_site_count) == MAX_SITES)
                cannot_run("trace: more than %d places in the program touch memory", MAX_SITES);
            trace_sites[number] = (Site){place, tensor, kind};
            site_table[slot] = (uint16_t)++trace_site_count;
        }
        if (trace_sites[number].place == place && trace_sites[number].tensor == tensor && trace_sites[number].kind == kind)
            return number;
    }
}

/* ---- source lines ---- */

/* One line of the answer, "tile.cuh:64" or "tile.cuh:64 (discriminator 2)", without what follows the number. */
static void trim(char *frame) { frame[strcspn(frame, " \n")] = 0; }

int is_below_kernels(const char *frame) {
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

const char *this_program(void) {
    static char path[PATH_MAX];
    return readlink("/proc/self/exe", path, sizeof path - 1) < 0 ? "" : path;
}

/* What addr2line answers: for each address, the address itself and then its frames, a line each. NULL: it cannot be run. It is run
 * without a shell, which would read the program's path in a way of its own. */
static FILE *ask_addr2line(char **words, pid_t *child) {
    int ends[2];
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    if (pipe(ends) != 0)
        return NULL;
    posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
    posix_spawn_file_actions_addclose(&actions, ends[0]);
    int error = posix_spawnp(child, words[0], &actions, NULL, words, environ);
    posix_spawn_file_actions_destroy(&actions);
    close(ends[1]);
    if (!error)
        return fdopen(ends[0], "r");
    close(ends[0]);
    fprintf(stderr, "%s cannot be run, so addresses replace source lines: %s\n", words[0], strerror(error));
    return NULL;
}

void source_lines(const Site *sites, int count, SourceLine *lines) {
    static char *const FIXED[] = {"addr2line", "--addresses", "--inlines", "--basenames", "--exe"};
    enum { BEFORE = sizeof FIXED / sizeof *FIXED + 1 }; /* the program, too */
    char **words = host_alloc(BEFORE + (size_t)count + 1, sizeof *words);
    memcpy(words, FIXED, sizeof FIXED);
    words[BEFORE - 1] = (char *)this_program();
    for (int i = 0; i < count; i++) { /* the return address is one instruction after the access */
        snprintf(lines[i], TRACE_LINE, "0x%zx", (size_t)((uintptr_t)sites[i].place - 1));
        words[BEFORE + i] = lines[i];
    }

    pid_t child;
    FILE *answer = count ? ask_addr2line(words, &child) : NULL;
    char frame[512], inner[TRACE_LINE / 2] = "";
    for (int i = -1; answer && fgets(frame, sizeof frame, answer);) {
        trim(frame);
        if (strncmp(frame, "0x", 2) == 0) /* the next address */
            i++, inner[0] = 0;
        else if (i >= 0 && i < count && frame[0] != '?')
            add_frame(lines[i], inner, frame);
    }
    if (answer)
        fclose(answer), waitpid(child, NULL, 0);
    free(words);
}
