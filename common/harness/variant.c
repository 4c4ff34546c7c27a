/* variant.c - one variant from its allocation to its row: outputs and workspace that hold NaN, one launch, the judge, the
 * clock. See run.h.
 */
#include "../host/memory.h"
#include "../host/errors.h"
#include "peak.h"
#include "prepare.h"
#include "run.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- memory ---- */

void *upload(const void *host, size_t bytes, const char *purpose) {
    void *device = device_alloc(bytes, purpose);
    if (!device)
        cannot_run("out of device memory: %s needs %.2f GiB, beside %.2f GiB in use", purpose, (double)bytes / 0x1p30,
                   (double)device_allocated() / 0x1p30);
    device_write(device, host, bytes);
    return device;
}

int alloc_buffer(Buffer *buffer) {
    buffer->pointer = device_alloc(buffer->bytes, buffer->purpose);
    if (buffer->pointer && buffer->zeroed) {
        void *zeros = host_alloc(buffer->bytes, 1); /* calloc */
        device_write(buffer->pointer, zeros, buffer->bytes);
        free(zeros);
    }
    return buffer->pointer != NULL;
}

void set_outputs(Run *run, const Task *task) {
    const Problem *p = run->p;
    size_t element = dtype_bytes(p->dtype);
    size_t bytes[] = {[LIKE_Q] = query_elements(p) * element,
                      [LIKE_K] = key_elements(p) * element,
                      [LIKE_LSE] = row_count(p) * sizeof(float)};
    run->output_count = task->output_count;
    for (int i = 0; i < task->output_count; i++) {
        const OutputKind *kind = &task->outputs[i];
        run->outputs[i] = (Output){kind, bytes[kind->shape], (void **)((char *)&run->device + kind->place), NULL, NULL};
    }
}

void plan_workspace(const Run *run, const Variant *variant, Row *row) {
    row->workspace_count = variant->plan ? variant->plan(run->p, row->workspace) : 0;
    row->workspace_bytes = 0;
    for (int i = 0; i < row->workspace_count; i++) {
        row->workspace[i].pointer = NULL;
        row->workspace_bytes += row->workspace[i].bytes;
    }
}

int alloc_outputs(Run *run, Row *row) {
    int fits = 1;
    for (int i = 0; i < run->output_count; i++) {
        *run->outputs[i].device = device_alloc(run->outputs[i].bytes, run->outputs[i].kind->name);
        fits = fits && *run->outputs[i].device;
    }
    for (int i = 0; fits && i < row->workspace_count; i++)
        fits = alloc_buffer(&row->workspace[i]);
    return fits;
}

void free_outputs(Run *run, Row *row) {
    for (int i = 0; i < run->output_count; i++)
        device_free(*run->outputs[i].device), *run->outputs[i].device = NULL;
    free_workspace(row);
}

void free_workspace(Row *row) {
    for (int i = 0; i < row->workspace_count; i++)
        device_free(row->workspace[i].pointer), row->workspace[i].pointer = NULL;
}

/* ---- one row ---- */

void name_row(const Run *run, const Variant *v, Row *row) {
    int is_whole = v == run->reference || v == run->forward;
    snprintf(row->name, sizeof row->name, "%s%s%s", is_whole ? "" : run->stage->name, is_whole ? "" : "/", v->name);
}

static void finish_row(Run *run, Row *row) {
    for (const char *damaged; (damaged = device_damaged());)
        snprintf(row->damaged, sizeof row->damaged, "%s", damaged);
    end_progress();
    report_row(&run->report, row);
}

/* Launches the variant once and looks at all it left behind. */
static void run_once(Run *run, Launch *launch, Row *row) {
    show_progress("%s: running ...", row->name);
    launch_once(launch);
    device_synchronize();
    if (!run->options.validate && !run->options.save)
        return;

    for (int i = 0; i < run->output_count; i++) {
        Output *output = &run->outputs[i];
        output->host = output->host ? output->host : host_alloc(output->bytes, 1);
        device_read(output->host, *output->device, output->bytes);
    }
    if (!run->options.validate)
        return;
    show_progress("%s: checking ...", row->name);
    row->validated = 1;
    row->comparison_count = run->output_count;
    run->task->judge(run, launch, row);
    if (row->role == ROW_REFERENCE && run->only != run->reference)
        for (int i = 0; i < run->output_count; i++) { /* keep what it computed for the variants to come */
            run->outputs[i].reference = run->outputs[i].host;
            run->outputs[i].host = NULL;
        }
}

/* What these kernels ask of device memory; NAN: nobody has worked it out. */
static double bytes_by(Predictor *formula, const Run *run) {
    Traffic traffic[MAX_TRAFFIC];
    double bytes = formula ? 0 : NAN;
    for (int i = formula ? formula(run->p, run->options.key_lengths, traffic) : 0; i-- > 0;)
        bytes += traffic[i].read + traffic[i].written;
    return bytes;
}

static double bytes_moved(const Launch *launch) {
    const Variant *v = launch->variant;
    const DirectionKind *d = &directions[launch->direction];
    return (d->runs_forward ? bytes_by(launch->run->forward->predict, launch->run) : 0) +
           (d->prepares ? bytes_by(v->preparation->predict, launch->run) : 0) +
           (d->launches ? bytes_by(v->predict, launch->run) : 0);
}

static void run_and_time(Run *run, Launch *launch, Row *row) {
    Direction direction = launch->direction;
    if (variant_prepares(launch->variant, run->p))
        launch->direction = WITH_PREPARE; /* so that there is something to start from */
    run_once(run, launch, row);
    launch->direction = direction;
    run->task->time(launch, row);
    row->gpu_bytes = bytes_moved(launch);
    if (row->role == ROW_REFERENCE)
        run->reference_ms = row->latency_ms;
    row->speed_ratio = run->reference_ms / row->latency_ms;
}

void run_variant(Run *run, const Variant *variant, Role role) {
    const Problem *p = run->p;
    Row *row = &run->rows[run->row_total++];
    name_row(run, variant, row);
    row->role = role;
    row->direction = run->task->direction;
    row->peak_tflops = peak_tflops(run->report.device, p->dtype, variant->uses & EIGHT_BITS);
    row->tensor_bytes = device_allocated() - (run->forward ? run->rows[0].workspace_bytes : 0);
    for (int i = 0; i < run->output_count; i++)
        row->tensor_bytes += run->outputs[i].bytes;
    const char *reason = variant_refuses(variant, p);
    if (reason) {
        snprintf(row->note, sizeof row->note, "not run: %s", reason);
        report_row(&run->report, row);
        return;
    }

    plan_workspace(run, variant, row);
    Launch launch = {run, variant, &run->device, row->workspace, row->direction};
    if (alloc_outputs(run, row))
        run_and_time(run, &launch, row);
    else
        snprintf(row->note, sizeof row->note, "out of memory: needs %.2f GiB",
                 (double)(row->tensor_bytes + row->workspace_bytes) / 0x1p30);
    finish_row(run, row);
    if (role == ROW_FORWARD && row_ran(row))
        return; /* its O and LSE are what the backward pass starts from */
    if (role == ROW_VARIANT && row_ran(row))
        run->task->parts(run, &launch, row);
    free_outputs(run, row);
}

void run_part(Run *run, const Launch *launch, const Row *row, Direction direction, const char *name) {
    Row *part = &run->rows[run->row_total++];
    Launch timed = *launch;
    timed.direction = direction;
    *part = *row;
    part->role = ROW_PART;
    part->direction = direction;
    part->comparison_count = part->validated = part->errors_known = part->spread_runs =
        0; /* the variant's own row says that */
    part->speed_ratio = 0;
    if (directions[direction].runs_forward)
        part->workspace_bytes += run->rows[0].workspace_bytes;
    snprintf(part->name, sizeof part->name, "%s/%s", run->stage->name, name);
    time_launch(&timed, part);
    part->gpu_bytes = bytes_moved(&timed);
    finish_row(run, part);
}
