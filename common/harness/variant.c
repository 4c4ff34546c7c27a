/* variant.c - one variant from its allocation to its rows. See run.h. */
#include "../host/errors.h"
#include "../host/memory.h"
#include "checks.h"
#include "row.h"
#include "tensors.h"

#include <stdio.h>
#include <string.h>

Row *new_row(Run *run, const Variant *variant, Role role) {
    int is_backward = run->stage->kind == BACKWARD && role != ROW_FORWARD, is_whole = role != ROW_VARIANT;
    Row *row = &run->rows[run->row_count++];
    *row = (Row){.run = run, .variant = variant, .role = role, .tensors = run->tensors};
    row->passes = is_backward ? BACKWARD_PASS : FORWARD_PASS;
    row->outputs = run->outputs + (is_backward ? FORWARD_OUTPUTS : 0);
    row->output_count = is_backward ? GRADIENT_COUNT : FORWARD_OUTPUTS;
    row->tensor_bytes = device_allocated() - (run->forward ? run->rows[0].workspace_bytes : 0);
    for (int i = 0; i < row->output_count; i++)
        row->tensor_bytes += row->outputs[i].bytes;
    row->peak_tflops = peak_tflops(run->device, run->p->dtype, variant->uses & EIGHT_BITS);
    snprintf(row->name, sizeof row->name, "%s%s%s", is_whole ? "" : run->stage->name, is_whole ? "" : "/", variant->name);
    return row;
}

void **pointer_to(Row *row, const Output *output) { return (void **)((char *)&row->tensors + output->place); }

int alloc_row(Row *row) {
    int fits = 1;
    row->workspace_count = row->variant->plan ? row->variant->plan(row->run->p, row->workspace) : 0;
    for (int i = 0; i < row->workspace_count; i++) {
        row->workspace[i].pointer = NULL;
        row->workspace_bytes += row->workspace[i].bytes;
    }
    for (int i = 0; i < row->output_count; i++) {
        void **pointer = pointer_to(row, &row->outputs[i]);
        *pointer = device_alloc(row->outputs[i].bytes, row->outputs[i].name);
        fits = fits && *pointer;
    }
    for (int i = 0; fits && i < row->workspace_count; i++)
        fits = alloc_buffer(&row->workspace[i]);
    return fits;
}

void free_row(Row *row) {
    for (int i = 0; i < row->output_count; i++)
        device_free(*pointer_to(row, &row->outputs[i]));
    for (int i = 0; i < row->workspace_count; i++)
        device_free(row->workspace[i].pointer);
}

void launch_row(void *context) {
    const Row *row = context;
    const Run *run = row->run;
    if (row->passes & PREPARE)
        row->variant->preparation->launch(run->p, &row->tensors, row->workspace);
    if (row->passes == BOTH)
        run->forward->launch(run->p, &row->tensors, run->rows[0].workspace);
    if (row->passes != PREPARE)
        row->variant->launch(run->p, &row->tensors, row->workspace);
}

/* Launches the variant once and looks at all it left behind. */
static void run_once(Row *row) {
    Run *run = row->run;
    Row first = *row;
    if (variant_prepares(row->variant, run->p))
        first.passes |= PREPARE; /* so that there is something to start from */
    show_progress("%s: running ...", row->name);
    launch_row(&first);
    device_synchronize();
    if (!run->options->validate && !run->options->save)
        return;

    for (int i = 0; i < row->output_count; i++) {
        Output *output = &row->outputs[i];
        output->host = output->host ? output->host : host_alloc(output->bytes, 1);
        device_read(output->host, *pointer_to(row, output), output->bytes);
    }
    if (!run->options->validate)
        return;
    show_progress("%s: checking ...", row->name);
    judge_row(row);
    for (int i = 0; i < row->output_count && row->role == ROW_REFERENCE && run->only != run->reference; i++) {
        row->outputs[i].reference = row->outputs[i].host; /* for the variants to come */
        row->outputs[i].host = NULL;
    }
}

void finish_row(Row *row) {
    for (const char *damaged; (damaged = device_damaged());)
        snprintf(row->damaged, sizeof row->damaged, "%s", damaged);
    end_progress();
    report_row(row);
}

Row *run_variant(Run *run, const Variant *variant, Role role) {
    Row *row = new_row(run, variant, role);
    const char *reason = variant_refuses(variant, run->p);
    if (reason) {
        snprintf(row->note, sizeof row->note, "not run: %s", reason);
    } else if (alloc_row(row)) {
        run_once(row);
        time_row(row);
    } else {
        snprintf(row->note, sizeof row->note, "out of memory: needs %.2f GiB",
                 (double)(row->tensor_bytes + row->workspace_bytes) / 0x1p30);
    }
    finish_row(row);
    if (role == ROW_VARIANT && row_ran(row))
        time_parts(row);
    if (role != ROW_FORWARD)
        free_row(row);
    return row;
}
