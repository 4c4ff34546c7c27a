/* transpose_main.c - runs the student's transpose() under the trace, for exercise banks_and_swizzles.4: rows of JSON, as the
 * stages' --trace --json, and one with the elements that are wrong and the bytes that must be moved. */
#include "../../common/device/device.h"
#include "../../common/host/errors.h"
#include "../../common/trace/trace.h"
#include "transpose.h"

#include <stdlib.h>

enum { ROWS = 200, COLUMNS = 328, COUNT = ROWS * COLUMNS };

int main(void) {
    static float from[COUNT], to[COUNT];
    const Problem p = {.batch = 1, .heads = 1, .kv_heads = 1, .seqlen_q = ROWS, .seqlen_k = ROWS, .head_dim = 8};
    int wrong = 0;
    program_is("transpose");
    for (int i = 0; i < COUNT; i++)
        from[i] = (float)i;
    float *device_from = device_alloc(sizeof from, "from"), *device_to = device_alloc(sizeof to, "to");
    device_write(device_from, from, sizeof from);
    trace_begin("h200");
    transpose(device_from, device_to, ROWS, COLUMNS);
    const Trace *trace = trace_end();
    trace_print(trace, "transpose", &p, 0, NULL, 0, 1);
    device_read(to, device_to, sizeof to);
    for (int i = 0; i < COUNT; i++) {
        const int column = i / ROWS, row = i % ROWS;
        const float want = from[row * COLUMNS + column];
        if (!(to[i] == want) && !wrong++)
            fprintf(stderr, "to[column %d][row %d] = %g, want %g\n", column, row, to[i], want);
    }
    for (const char *damaged; (damaged = device_damaged()); wrong++)
        fprintf(stderr, "wrote outside %s\n", damaged);
    printf("{\"wrong\": %d, \"compulsory\": %zu}\n", wrong, sizeof from + sizeof to);
    return 0;
}
