/* table.c - the columns of the table of rows: which are shown, and how wide they are. report.c fills them. */
#include "table.h"

#include <stdio.h>
#include <string.h>

/* clang-format off */
/* On the CPU device no figure that comes from the clock says anything about a GPU: bytes take the place of rates. */
enum { ON_GPU = 1, ON_CPU = 2, ON_BOTH = 3 };
#define OF(kind) (1u << (kind)) /* stages */
enum { ALL = OF(FORWARD) | OF(BACKWARD) | OF(DECODING) };

static const struct {
    const char *title;
    int width;
    int on;
    unsigned kinds;
} COLUMNS[COLUMN_COUNT] = {
    [VARIANT] = {"variant", 0, ON_BOTH, ALL},
    [DIRECTION] = {"direction", 10, ON_BOTH, OF(BACKWARD)},
    [LATENCY] = {"latency", 9, ON_GPU, ALL},
    [MIN] = {"min", 8, ON_GPU, ALL},
    [TFLOPS] = {"TFLOP/s", 9, ON_GPU, OF(FORWARD) | OF(BACKWARD)},
    [DENSE] = {"if dense", 9, ON_GPU, OF(FORWARD)},
    [OF_PEAK] = {"of peak", 9, ON_GPU, OF(FORWARD) | OF(BACKWARD)},
    [GBPS] = {"GB/s", 7, ON_GPU, OF(DECODING)},
    [OF_READ] = {"of read", 8, ON_GPU, OF(DECODING)},
    [OF_COPY] = {"of copy", 8, ON_GPU, OF(DECODING)},
    [SIMULATED] = {"simulated", 10, ON_CPU, ALL},
    [MOVED] = {"bytes moved", 12, ON_CPU, ALL},
    [INTENSITY] = {"FLOPs/byte", 11, ON_CPU, ALL},
    [MEMORY] = {"tensors + workspace", 21, ON_BOTH, ALL},
    [VS_NAIVE] = {"vs naive", 9, ON_GPU, ALL},
    [ERROR] = {"error / allowed", 19, ON_BOTH, ALL},
};
/* clang-format on */

/* What a narrow terminal has no room for is left out in this order. The memory also stands below the table, by purpose. */
static const int LEAVE_OUT[] = {MEMORY, MIN, SIMULATED, OF_PEAK, OF_COPY, DENSE, VS_NAIVE, INTENSITY, MOVED};
enum { LEAVE_OUT_COUNT = sizeof LEAVE_OUT / sizeof *LEAVE_OUT };

static int applies(const Run *run, int column) {
    return COLUMNS[column].on & (run->device->is_cpu ? ON_CPU : ON_GPU) && COLUMNS[column].kinds & OF(run->stage->kind) &&
           (column != DENSE || run->p->blocks);
}

/* The longest of the stage's names, "06_fp8/quantise+overlapped". */
static int longest_name(const Run *run) {
    size_t longest = strlen(NAIVE);
    for (int i = 0; run->stage->variants[i].name; i++) {
        const Variant *v = &run->stage->variants[i];
        size_t length =
            strlen(run->stage->name) + 1 + strlen(v->name) + (v->preparation ? strlen(v->preparation->name) + 1 : 0);
        longest = length > longest ? length : longest;
    }
    return (int)longest;
}

static int is_shown(const Run *run, int column) {
    int width = longest_name(run);
    for (int i = 0; i < COLUMN_COUNT; i++)
        width += applies(run, i) ? COLUMNS[i].width : 0;
    for (int i = 0; i < LEAVE_OUT_COUNT && line_places() < LINE_PLACES && width > line_places(); i++) {
        if (LEAVE_OUT[i] == column)
            return 0;
        width -= applies(run, LEAVE_OUT[i]) ? COLUMNS[LEAVE_OUT[i]].width : 0;
    }
    return applies(run, column);
}

/* The first column holds the longest name if the line has room for it. */
int name_width(const Run *run) {
    int room = line_places();
    for (int i = 0; i < COLUMN_COUNT; i++)
        room -= is_shown(run, i) ? COLUMNS[i].width : 0;
    return longest_name(run) < room ? longest_name(run) : room;
}

/* Names to the left, numbers to the right. What is too long for its column comes out of the gaps behind it. */
void print_line(const Run *run, const Cell cells[COLUMN_COUNT]) {
    int at = (int)strlen(cells[VARIANT]), end = name_width(run); /* of the line so far; of the columns so far */
    print_text("%s", cells[VARIANT]);
    for (int i = VARIANT + 1; i < COLUMN_COUNT; i++) {
        if (!is_shown(run, i))
            continue;
        end += COLUMNS[i].width;
        int length = (int)strlen(cells[i]), padding = end - at > length ? end - at - length : 1;
        print_text("%*s%s", padding, "", cells[i]);
        at += padding + length;
    }
    print_text("\n");
}

void print_titles(const Run *run) {
    Cell titles[COLUMN_COUNT];
    for (int i = 0; i < COLUMN_COUNT; i++)
        snprintf(titles[i], sizeof(Cell), "%s", COLUMNS[i].title);
    print_line(run, titles);
}
