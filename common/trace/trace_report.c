/* trace_report.c - prints a Trace: a table per kernel for people, or JSON, one object per line, for machines. */
#include "../host/text.h"
#include "trace_internal.h"

#include <string.h>

/* Everything trace_print was given. */
typedef struct {
    const Trace *trace;
    const char *variant;
    const Problem *p;
    double flops; /* of the problem, not those that the kernels really do */
    const Traffic *predicted;
    int predicted_count;
} TraceReport;

static int is_shared(const TraceRow *row) { return strcmp(row->tensor, SHARED_MEMORY_NAME) == 0; }

static double per(uint64_t a, uint64_t b) { return b ? (double)a / (double)b : 0; }

/* What the formula says about this row, or NULL if it does not speak of it. */
static const Traffic *prediction(const TraceReport *r, const TraceRow *row) {
    for (int i = 0; i < r->predicted_count; i++)
        if (strcmp(r->predicted[i].kernel, row->kernel) == 0 && strcmp(r->predicted[i].tensor, row->tensor) == 0)
            return &r->predicted[i];
    return NULL;
}

/* Device memory of the whole variant: as requested, and if each kernel fetched each byte only once. */
typedef struct {
    double requested, unique;
} Total;
static Total total_bytes(const Trace *trace) {
    Total total = {0, 0};
    for (const TraceRow *row = trace->rows; row < trace->rows + trace->row_count; row++)
        for (int i = 0; i < TRACE_DIRECTIONS && !is_shared(row); i++) {
            total.requested += (double)row->bytes[i];
            total.unique += (double)row->unique[i];
        }
    return total;
}

/* ---- for people ---- */

/* A narrow terminal has no room for them; what differs from its formula is said below all tables, too. */
static int has_formulas(void) { return line_places() == LINE_PLACES; }

static void print_with_formula(const Traffic *predicted, uint64_t bytes, int direction) {
    double formula = !predicted ? 0 : direction == TRACE_READ ? predicted->read : predicted->written;
    char text[32] = "-";
    if (predicted)
        snprintf(text, sizeof text, "%s%.0f", formula == (double)bytes ? "" : "!= ", formula);
    print_text(" %11llu", (unsigned long long)bytes);
    if (has_formulas())
        print_text(" %11s", text);
}

static void print_worst(const TraceRow *row) {
    if (row->worst_line[0])
        print_text("  %s (%.4g for %.4g)", row->worst_line, per(row->worst_cost, row->worst_requests),
                   per(row->worst_ideal, row->worst_requests));
    print_text("\n");
}

static void print_device_row(const TraceReport *r, const TraceRow *row) {
    const Traffic *predicted = prediction(r, row);
    uint64_t requests = row->requests[0] + row->requests[1], bytes = row->bytes[0] + row->bytes[1];
    print_text("  %-13s", row->tensor);
    print_with_formula(predicted, row->bytes[TRACE_READ], TRACE_READ);
    print_with_formula(predicted, row->bytes[TRACE_WRITE], TRACE_WRITE);
    print_text(" %8.1f %7.2f %6.2f%s", per(bytes, row->unique[0] + row->unique[1]),
               per(row->cost[0] + row->cost[1], requests), per(row->ideal[0] + row->ideal[1], requests),
               row->approximate ? "~" : " ");
    print_worst(row);
}

static void print_shared_row(const TraceRow *row) {
    uint64_t cost = row->cost[0] + row->cost[1], ideal = row->ideal[0] + row->ideal[1];
    print_text("  shared memory: read %llu, written %llu bytes; %llu wavefronts, %llu of them bank conflicts%s",
               (unsigned long long)row->bytes[TRACE_READ], (unsigned long long)row->bytes[TRACE_WRITE],
               (unsigned long long)cost, (unsigned long long)(cost - ideal), row->worst_line[0] ? "; worst:" : "");
    print_worst(row);
}

static void print_work(const TraceKernel *k) {
    print_text("  work: %llu mma FLOPs, %llu of CUDA cores, %llu exponentials, %llu barriers", (unsigned long long)k->mma_flops,
               (unsigned long long)k->cuda_flops, (unsigned long long)k->exponentials, (unsigned long long)k->barriers);
    for (const TraceCollective *c = k->collectives; c->what; c++)
        print_text(", %llu %s", (unsigned long long)c->count, c->what);
    print_text("\n");
}

static void print_race(const TraceRace *race, FILE *to) {
    fprintf(to, "RACE in %s, %s: thread %u of block %u %s at %s\n", race->kernel, race->tensor, race->thread[0],
            race->block[0], race->writes[0] ? "writes" : "reads", race->line[0]);
    fprintf(to, "     and thread %u of block %u %s at %s: the same byte, %llu, %s\n", race->thread[1], race->block[1],
            race->writes[1] ? "writes" : "reads", race->line[1], (unsigned long long)race->offset,
            race->unpublished ? "in order, but with no proxy_fence after the first"
                              : "with nothing in between that orders them");
    fprintf(to, "     (%llu bytes between these lines)\n", (unsigned long long)race->count);
}

void trace_print_races(const Trace *trace, FILE *to) {
    for (int i = 0; i < trace->race_count; i++)
        print_race(&trace->races[i], to);
}

/* Does a kernel multiply in 8 bits? Then its instruction takes 32 elements of k at a time; 16-bit ones take 16. */
static int multiplies_8_bits(const Trace *trace) {
    for (int i = 0; i < trace->kernel_count; i++)
        for (const TraceCollective *c = trace->kernels[i].collectives; c->what; c++)
            if (strstr(c->what, "mma_m") && strstr(c->what, "k32"))
                return 1;
    return 0;
}

/* A kernel that does `intensity` FLOPs for each byte that it moves cannot be faster: under `peak` memory is the roof. */
static void print_roof(const TraceReport *r, const char *what, double bytes) {
    double intensity = r->flops / bytes, peak = trace_chip->tflops[multiplies_8_bits(r->trace)];
    double memory = intensity * trace_chip->gbps / 1000;
    print_text("  %-23s %12.0f bytes %8.2f FLOPs per byte   %s: %s limits it to %.1f of %.0f TFLOP/s\n", what, bytes, intensity,
           trace_chip->name, memory < peak ? "memory" : "compute", fmin(memory, peak), peak);
}

static void print_table(const TraceReport *r) {
    const Problem *p = r->p;
    print_text("%s   batch %d, heads %d/%d, seqlen %dx%d, head_dim %d, %s, %s%s%s%s%s\n", r->variant, p->batch, p->heads,
               p->kv_heads, p->seqlen_q, p->seqlen_k, p->head_dim, dtype_name(p->dtype), p->causal ? "causal" : "full",
               p->blocks ? ", blocks " : "", p->blocks ? p->blocks->text : "",
               p->score ? ", score " : "", p->score ? p->score->text : "");
    for (int i = 0; i < r->trace->kernel_count; i++) {
        const TraceKernel *k = &r->trace->kernels[i];
        const TraceRow *rows = r->trace->rows, *end = rows + r->trace->row_count;
        printf("\n%s   %llu blocks of %llu threads, %llu bytes of shared memory each\n", k->name,
               (unsigned long long)k->blocks, (unsigned long long)k->threads, (unsigned long long)k->shared_bytes);
        print_text(has_formulas() ? "  %-13s %11s     formula %11s     formula %8s %7s %6s   %s\n" : "  %-13s %11s %11s %8s %7s %6s   %s\n",
                   "bytes of", "read", "written", "times", "sectors", "ideal", "costs most at");
        for (const TraceRow *row = rows; row < end; row++)
            if (row->kernel == k->name && !is_shared(row))
                print_device_row(r, row);
        for (const TraceRow *row = rows; row < end; row++)
            if (row->kernel == k->name && is_shared(row))
                print_shared_row(row);
        print_work(k);
    }
    Total total = total_bytes(r->trace);
    printf("\nall kernels, %.0f FLOPs of attention\n", r->flops);
    print_roof(r, "if nothing were cached", total.requested);
    print_roof(r, "if each byte moved once", total.unique);
    trace_print_races(r->trace, stdout);
    printf(r->trace->race_count ? "\n" : "no races\n\n");
}

/* ---- for machines ---- */

static void print_pair(const char *name, const uint64_t pair[TRACE_DIRECTIONS]) {
    printf(", \"%s_read\": %llu, \"%s_written\": %llu", name, (unsigned long long)pair[TRACE_READ], name,
           (unsigned long long)pair[TRACE_WRITE]);
}

static void print_json(const TraceReport *r) {
    const Trace *trace = r->trace;
    for (const TraceRow *row = trace->rows; row < trace->rows + trace->row_count; row++) {
        const Traffic *predicted = prediction(r, row);
        printf("{\"variant\": \"%s\", \"kernel\": \"%s\", \"%s\": \"%s\"", r->variant, row->kernel,
               is_shared(row) ? "memory" : "tensor", row->tensor);
        print_pair("bytes", row->bytes);
        print_pair("unique", row->unique);
        print_pair("requests", row->requests);
        print_pair(is_shared(row) ? "wavefronts" : "sectors", row->cost);
        print_pair("ideal", row->ideal);
        if (predicted)
            printf(", \"formula_read\": %.0f, \"formula_written\": %.0f", predicted->read, predicted->written);
        printf(", \"worst\": \"%s\", \"worst_cost\": %.4g, \"worst_ideal\": %.4g}\n", row->worst_line,
               per(row->worst_cost, row->worst_requests), per(row->worst_ideal, row->worst_requests));
    }
    for (int i = 0; i < trace->kernel_count; i++) {
        const TraceKernel *k = &trace->kernels[i];
        printf("{\"variant\": \"%s\", \"kernel\": \"%s\", \"blocks\": %llu, \"barriers\": %llu, \"exponentials\": %llu, "
               "\"exponentials_beside_wgmma\": %llu, \"mma_flops\": %llu, \"cuda_flops\": %llu",
               r->variant, k->name, (unsigned long long)k->blocks, (unsigned long long)k->barriers,
               (unsigned long long)k->exponentials, (unsigned long long)k->exponentials_beside, (unsigned long long)k->mma_flops,
               (unsigned long long)k->cuda_flops);
        for (const TraceCollective *c = k->collectives; c->what; c++)
            printf(", \"%s\": %llu", c->what, (unsigned long long)c->count);
        printf("}\n");
    }
    for (int i = 0; i < trace->race_count; i++) {
        const TraceRace *race = &trace->races[i];
        printf("{\"variant\": \"%s\", \"kernel\": \"%s\", \"race\": \"%s\", \"earlier\": \"%s\", \"later\": \"%s\", "
               "\"missing\": \"%s\", \"bytes\": %llu}\n",
               r->variant, race->kernel, race->tensor, race->line[0], race->line[1],
               race->unpublished ? "proxy_fence" : "order", (unsigned long long)race->count);
    }
    Total total = total_bytes(trace);
    printf("{\"variant\": \"%s\", \"attention_flops\": %.0f, \"requested_bytes\": %.0f, \"unique_bytes\": %.0f}\n",
           r->variant, r->flops, total.requested, total.unique);
}

/* Says which formulas are not what was counted. Returns how many. */
static int check_formulas(const TraceReport *r) {
    int wrong = 0;
    for (const Traffic *t = r->predicted; t < r->predicted + r->predicted_count; t++) {
        const TraceRow *row = trace_find(r->trace, t->kernel, t->tensor);
        if ((double)row->bytes[TRACE_READ] == t->read && (double)row->bytes[TRACE_WRITE] == t->written)
            continue;
        fprintf(stderr, "%s: %s in %s: %llu bytes read, %llu written; by its formula %.0f and %.0f\n", r->variant, t->tensor,
                t->kernel, (unsigned long long)row->bytes[TRACE_READ], (unsigned long long)row->bytes[TRACE_WRITE], t->read,
                t->written);
        wrong++;
    }
    return wrong;
}

int trace_print(const Trace *trace, const char *variant, const Problem *p, double flops, const Traffic *predicted,
                int predicted_count, int json) {
    TraceReport report = {trace, variant, p, flops, predicted, predicted_count};
    if (json)
        print_json(&report);
    else
        print_table(&report);
    fflush(stdout);
    return check_formulas(&report);
}
