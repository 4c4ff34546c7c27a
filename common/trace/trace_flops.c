/* trace_flops.c - counts the multiplications and additions of the CUDA cores.
 *
 * gcc's -fsanitize-coverage=trace-pc puts a call at the beginning of each *basic block*: instructions of which all are executed
 * or none. Which of them multiply, add, subtract or divide floats is read once, from what binutils' objdump made of this
 * program when it was linked (build.mk: READ_CODE). So FLOPs are counted as they are executed, each at its line. What the twins of CUDA's instructions compute is not the
 * kernel's: their lines are left out.
 */
#include "trace_internal.h"

#include "../host/memory.h"

#include <limits.h>
#include <string.h>

typedef struct {
    uintptr_t address; /* to which the call at its beginning returns */
    unsigned flops;
    uint64_t count; /* in this launch */
} Block;
static Block *blocks; /* those with FLOPs, by address */
static size_t block_count;
static unsigned *numbers, reach; /* of the block at each address from the first one's on, from 1; how many addresses that are */

static struct {
    uintptr_t address;
    size_t block;
    unsigned flops;
} *operations;
static size_t operation_count;

/* x86-64 and Arm; a fused multiply-add is two. */
static unsigned flops_of(const char *mnemonic) {
    static const char ONE[] = " addss subss mulss divss fadd fsub fmul fnmul fdiv ", TWO[] = " fmadd fmsub fnmadd fnmsub ";
    char word[32];
    snprintf(word, sizeof word, " %s ", mnemonic);
    return strstr(ONE, word) ? 1 : strstr(TWO, word) ? 2 : 0;
}

void flops_read_program(void) {
    char path[PATH_MAX + 10], line[2048], mnemonic[24];
    uintptr_t begin = 0; /* of the basic block; 0: none, in code that has no such calls */
    unsigned long address;
    int call = 0, below = 0;
    if (blocks)
        return;
    blocks = host_alloc(1, sizeof *blocks);
    snprintf(path, sizeof path, "%s.code", this_program());
    FILE *code = fopen(path, "r");
    while (code && fgets(line, sizeof line, code)) {
        const char *name = strrchr(line, '/');
        if (line[0] == '0') /* "0000000000401230 <a function>:" */
            begin = 0;
        else if (line[0] == '/') /* "/a/folder/softmax.cuh:12": whose line the next instructions are */
            below = is_below_kernels(name + 1);
        if (sscanf(line, " %lx: %23s", &address, mnemonic) != 2)
            continue;
        begin = call ? address : begin;
        call = strstr(line, "<__sanitizer_cov_trace_pc") != NULL;
        unsigned flops = begin && !below ? flops_of(mnemonic) : 0;
        if (!flops)
            continue;
        if (!block_count || blocks[block_count - 1].address != begin) {
            blocks = host_resize(blocks, block_count + 1, sizeof *blocks);
            blocks[block_count++] = (Block){begin, 0, 0};
        }
        blocks[block_count - 1].flops += flops;
        operations = host_resize(operations, operation_count + 1, sizeof *operations);
        operations[operation_count].address = address, operations[operation_count].block = block_count - 1;
        operations[operation_count++].flops = flops;
    }
    if (code)
        fclose(code);
    reach = block_count ? blocks[block_count - 1].address - blocks[0].address + 1 : 0;
    numbers = host_alloc(reach + 1, sizeof *numbers);
    for (size_t i = 0; i < block_count; i++)
        numbers[blocks[i].address - blocks[0].address] = i + 1;
}

unsigned flops_pass(const void *place) {
    uintptr_t from_first = (uintptr_t)place - blocks[0].address;
    if (from_first >= reach || !numbers[from_first])
        return 0;
    Block *block = &blocks[numbers[from_first] - 1];
    block->count++;
    return block->flops;
}

void flops_launch_ends(int kernel) {
    for (size_t i = 0; page_problem && i < operation_count; i++)
        if (blocks[operations[i].block].count) /* places are one after the instruction, as return addresses are */
            page_work(kernel, (const char *)operations[i].address + 1, "flop", operations[i].flops * blocks[operations[i].block].count);
    for (size_t i = 0; i < block_count; i++)
        blocks[i].count = 0;
}
