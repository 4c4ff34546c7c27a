/* report.c - see report.h. */
#include "report.h"

#include "../host/errors.h"
#include "../host/text.h"

#include <stdio.h>
#include <string.h>

#ifndef FA_COMMIT
#define FA_COMMIT "unknown"
#endif

double counted_flops(const Problem *p, Direction direction) {
    static const double passes[] = {[FORWARD] = 1, [BACKWARD] = 2.5, [BOTH] = 3.5, [PREPARE] = 0, [WITH_PREPARE] = 1};
    return passes[direction] * 4.0 * (double)row_count(p) * p->seqlen_k * p->head_dim / (p->causal ? 2 : 1);
}

double compulsory_bytes(const Problem *p, Direction direction) {
    static const int queries[] = {2, 4, 6}, keys[] = {2, 4, 6}, rows[] = {1, 1, 2}; /* Q, O, dO, dQ; K, V, dK, dV; LSE */
    if (direction > BOTH)
        direction = FORWARD;
    double elements = (double)queries[direction] * query_elements(p) + (double)keys[direction] * key_elements(p);
    return elements * dtype_bytes(p->dtype) + (double)rows[direction] * row_count(p) * sizeof(float);
}

/* A setting's value as the command line says it. */
static void setting_text(const Setting *setting, int value, char *text, size_t size) {
    if (setting->max && value > 0) {
        snprintf(text, size, "%d", value);
        return;
    }
    if (!setting->choices) { /* a flag */
        snprintf(text, size, "%s", value ? "on" : "off");
        return;
    }
    const char *choice = setting->choices;
    for (int i = 0; i < value; i++)
        choice += strcspn(choice, "|") + 1;
    snprintf(text, size, "%.*s", (int)strcspn(choice, "|"), choice);
}

/* NaN of a pre-pass alone: what is counted is attention's. 00_naive knows none of the stage's own options, the 8-bit cache among
 * them: its bytes are those without. */
static double tflops(const Report *r, const Row *row) {
    return row->direction == PREPARE ? NAN : counted_flops(r->problem, row->direction) / (row->latency_ms * 1e9);
}
static double gbps(const Report *r, const Row *row) {
    Problem p = *r->problem;
    if (strcmp(row->name, NAIVE) == 0)
        memset(p.settings, 0, sizeof p.settings);
    double moved = r->stage->bytes ? r->stage->bytes(&p, r->key_lengths) : compulsory_bytes(&p, row->direction);
    return row->direction == PREPARE ? NAN : moved / (row->latency_ms * 1e6);
}

const char *direction_name(Direction direction) {
    static const char *names[] = {[FORWARD] = "forward",
                                  [BACKWARD] = "backward",
                                  [BOTH] = "both",
                                  [PREPARE] = "prepare",
                                  [WITH_PREPARE] = "prepare and forward"};
    return names[direction];
}

int is_variant_row(const Row *row, const Stage *stage) {
    return strcmp(row->name, NAIVE) != 0 && row->direction == (stage->forward ? BACKWARD : FORWARD);
}

int row_ran(const Row *row) { return !*row->note; }
int row_ok(const Row *row) {
    int ok = row_ran(row) && !*row->damaged;
    for (int i = 0; i < row->comparison_count; i++)
        ok = ok && row->comparisons[i].ok;
    return ok;
}

const Comparison *row_unchecked(const Row *row) {
    for (int i = 0; i < row->comparison_count; i++)
        if (row->comparisons[i].empty)
            return &row->comparisons[i];
    return NULL;
}

/* Why the row did not run, or was not checked. Empty: it ran, and was or nobody asked for it. */
static void row_note(const Row *row, char *text, size_t size) {
    const Comparison *c = row_ran(row) && row_ok(row) ? row_unchecked(row) : NULL;
    if (c)
        snprintf(text, size, "not checked: rounding alone may change %s by %.2g, and it is at most %.2g", c->tensor,
                 c->loosest, c->largest);
    else
        snprintf(text, size, "%s", row->note);
}

/* The comparison to show: the first, unless only a later one is bad; of gradients the worst. */
static const Comparison *worst(const Row *row) {
    const Comparison *worst = &row->comparisons[0];
    for (int i = 1; i < row->comparison_count; i++) {
        const Comparison *c = &row->comparisons[i];
        if ((worst->ok && !c->ok) || (row->direction == BACKWARD && c->severity > worst->severity))
            worst = c;
    }
    return worst;
}

/* ---- the table ---- */

/* "-" for what is not known */
static void print_known(Cell cell, double value, const char *unit) {
    if (isfinite(value))
        print_number(cell, value, unit);
    else
        strcpy(cell, "-");
}

enum { VARIANT, DIRECTION, LATENCY, MIN, TFLOPS, GBPS, OF_READ, OF_COPY, MEMORY, VS_NAIVE, ERROR, COLUMN_COUNT };

static const char *TITLES[COLUMN_COUNT] = {"variant",
                                           "direction",
                                           "latency",
                                           "min",
                                           "TFLOP/s",
                                           "GB/s",
                                           "% of read",
                                           "% of copy",
                                           "memory: tensors + workspace",
                                           "vs naive",
                                           "worst error / allowed"};
static const int WIDTHS[COLUMN_COUNT] = {[DIRECTION] = 11, [LATENCY] = 10, [MIN] = 9,     [TFLOPS] = 9,    [GBPS] = 8,
                                         [OF_READ] = 11,   [OF_COPY] = 11, [MEMORY] = 29, [VS_NAIVE] = 10, [ERROR] = 23};

/* Only a backward stage's rows differ in direction; only a stage that memory limits speaks of GB/s, and then not of TFLOP/s. */
static int is_shown(const Stage *stage, int column) {
    switch (column) {
    case DIRECTION: return stage->forward != NULL;
    case TFLOPS: return !stage->bytes;
    case GBPS:
    case OF_READ:
    case OF_COPY: return stage->bytes != NULL;
    default: return 1;
    }
}

/* The first column holds the longest of the stage's names, "01_tiled/mma", "06_fp8/quantise+mma". */
static int name_width(const Stage *stage) {
    size_t longest = strlen(NAIVE);
    for (int i = 0; i < MAX_VARIANTS && stage->variants[i].name; i++) {
        const Variant *v = &stage->variants[i];
        size_t length = strlen(stage->name) + 1 + strlen(v->name) + (v->prepare_name ? strlen(v->prepare_name) + 1 : 0);
        longest = length > longest ? length : longest;
    }
    return (int)longest;
}

/* Names to the left, numbers to the right. */
static void print_line(const Report *r, const Cell cells[COLUMN_COUNT]) {
    for (int i = 0; i < COLUMN_COUNT; i++) {
        int padding = (i == VARIANT ? name_width(r->stage) : WIDTHS[i]) - display_width(cells[i]);
        padding = padding < 0 ? 0 : padding;
        if (!is_shown(r->stage, i))
            continue;
        if (i == VARIANT)
            printf("%s%*s", cells[i], padding, "");
        else
            printf("%*s%s", padding, "", cells[i]);
    }
    printf("\n");
}

static void table_start(const Report *r) {
    const Problem *p = r->problem;
    printf("device   %s · %s\n", r->device->name, r->device->platform);
    printf("problem  %s · batch %d · heads %d/%d · seqlen %d×%d · head_dim %d · %s · %s",
           r->stage->forward ? "forward and backward" : "forward", p->batch, p->heads, p->kv_heads, p->seqlen_q, p->seqlen_k,
           p->head_dim, dtype_name(p->dtype), p->causal ? "causal" : "full");
    if (p->scale != 1 / sqrtf((float)p->head_dim))
        printf(" · scale %g", p->scale);
    if (r->key_lengths) {
        printf(" · key lengths");
        for (int b = 0; b < p->batch && b < 8; b++)
            printf("%s%d", b ? "," : " ", r->key_lengths[b]);
        printf("%s", p->batch > 8 ? ",..." : "");
    }
    for (int i = 0; i < MAX_SETTINGS && r->stage->settings[i].name; i++) {
        char value[32];
        setting_text(&r->stage->settings[i], p->settings[i], value, sizeof value);
        printf(" · %s %s", r->stage->settings[i].name, value);
    }
    if (r->load)
        printf(" · from %s", r->load);
    else if (r->options->outliers)
        printf(" · inputs with outliers");
    if (r->options->warm)
        printf(" · warm L2");
    printf("\n");
    if (r->bandwidth.read_gbps > 0)
        printf("memory   gives %.0f GB/s when it is read, %.0f GB/s when it is copied (bytes read and written)\n",
               r->bandwidth.read_gbps, r->bandwidth.copy_gbps);
    Cell titles[COLUMN_COUNT];
    for (int i = 0; i < COLUMN_COUNT; i++)
        snprintf(titles[i], sizeof(Cell), "%s", TITLES[i]);
    print_line(r, titles);
}

static void table_row(const Report *r, const Row *row) {
    if (!row_ran(row)) {
        printf("%-*s   %s\n", name_width(r->stage), row->name, row->note);
        return;
    }
    Cell cells[COLUMN_COUNT], tensors, workspace;
    snprintf(cells[VARIANT], sizeof(Cell), "%s", row->name);
    snprintf(cells[DIRECTION], sizeof(Cell), "%s", direction_name(row->direction));
    print_time(cells[LATENCY], row->latency_ms);
    print_time(cells[MIN], row->min_ms);
    print_known(cells[TFLOPS], tflops(r, row), "");
    print_known(cells[GBPS], gbps(r, row), "");
    print_known(cells[OF_READ], 100 * gbps(r, row) / r->bandwidth.read_gbps, "%");
    print_known(cells[OF_COPY], 100 * gbps(r, row) / r->bandwidth.copy_gbps, "%");
    print_bytes(tensors, (double)row->tensor_bytes);
    print_bytes(workspace, (double)row->workspace_bytes);
    snprintf(cells[MEMORY], sizeof(Cell), "%.30s + %.30s", tensors, workspace);
    if (row->speed_ratio > 0)
        print_number(cells[VS_NAIVE], row->speed_ratio, "×");
    else
        strcpy(cells[VS_NAIVE], "-");
    if (row_ok(row) && row_unchecked(row))
        strcpy(cells[ERROR], "not checked");
    else if (row->validated)
        snprintf(cells[ERROR], sizeof(Cell), "%.1e / %.1e", worst(row)->error, worst(row)->allowed);
    else
        strcpy(cells[ERROR], row->direction == FORWARD || row->direction == BACKWARD ? "not validated" : "-");
    print_line(r, cells);
}

/* "workspace 00_naive: S 2.00 GiB, P 1.00 GiB" */
static void print_workspace(const Row *row) {
    printf("workspace  %s:", row->name);
    for (int i = 0; i < row->workspace_count; i++) {
        Cell bytes;
        print_bytes(bytes, (double)row->workspace[i].bytes);
        printf("%s %s %s", i ? "," : "", row->workspace[i].purpose, bytes);
    }
    printf("\n");
}

/* "gradients  05_fa2_backward/atomic: dQ 1.2e-03 / 4.0e-03, dK ..., dV ...; 4 runs differ by up to 3.1e-05" */
static void print_gradients(const Row *row) {
    printf("gradients  %s:", row->name);
    for (int i = 0; i < row->comparison_count; i++)
        printf("%s %s %.1e / %.1e", i ? "," : "", row->comparisons[i].tensor, row->comparisons[i].error,
               row->comparisons[i].allowed);
    if (row->spread_runs && row->spread == 0)
        printf("; %d runs are bit-equal", row->spread_runs);
    else if (row->spread_runs)
        printf("; %d runs differ by up to %.1e", row->spread_runs, row->spread);
    printf("\n");
}

/* "accuracy   06_fp8/mma: RMSE 1.2e-02, worst error 9.8e-02, against fp64 on 64 rows" */
static void print_accuracy(const Report *r, const Row *row) {
    printf("accuracy   %s: RMSE %.1e, worst error %.1e, against fp64 of the inputs as given, on %d rows\n", row->name,
           row->errors.rms, row->errors.worst, r->sample_count);
}

/* Where every variant is exact up to rounding, nobody asks how exact. */
static int shows_accuracy(const Row *rows, int count) {
    for (int i = 0; i < count; i++)
        if (rows[i].direction == PREPARE)
            return 1;
    return 0;
}

static void print_verdict(const Report *r, const Row *rows, int count) {
    int ran = 0, bad = 0, against_oracle = 0, validated = 0, unchecked = 0, variants = 0;
    const Row *naive = NULL, *forward = NULL;
    for (int i = 0; i < count; i++) {
        int is_variant = is_variant_row(&rows[i], r->stage);
        if (strcmp(rows[i].name, NAIVE) == 0)
            naive = &rows[i];
        else if (!is_variant && rows[i].direction == FORWARD)
            forward = &rows[i];
        variants += is_variant;
        if (!row_ran(&rows[i]))
            continue;
        validated += rows[i].validated;
        unchecked += row_unchecked(&rows[i]) != NULL;
        if (!is_variant)
            continue;
        ran++;
        bad += !row_ok(&rows[i]);
        against_oracle = rows[i].against_oracle;
    }
    char oracle[64];
    snprintf(oracle, sizeof oracle, "the fp64 oracle on %d rows", r->sample_count);
    int naive_ran = naive && row_ran(naive), alone = naive && !variants;
    if (forward && !row_ok(forward))
        printf("FAIL  the forward pass, %s, disagrees with %s\n", forward->name, oracle);
    else if (naive_ran && !row_ok(naive))
        printf("FAIL  " NAIVE " disagrees with %s\n", oracle);
    else if (bad && !validated)
        printf("FAIL  %d of %d variants wrote where nothing of theirs is\n", bad, ran);
    else if (bad)
        printf("FAIL  %d of %d variants %s with %s\n", bad, ran, bad == 1 ? "disagrees" : "disagree",
               against_oracle ? oracle : NAIVE);
    else if (ran == 0 && !(alone && naive_ran))
        printf("NOT RUN  no variant of %s can run this problem here\n", r->stage->name);
    else if (!validated)
        printf("not validated\n");
    else if (unchecked)
        printf("NOT CHECKED  %d of %d results: rounding alone may change them by half and more\n", unchecked, validated);
    else if (alone)
        printf("PASS  " NAIVE " agrees with %s\n", oracle);
    else
        printf("PASS  %d %s with %s\n", ran, ran == 1 ? "variant agrees" : "variants agree",
               against_oracle ? oracle : NAIVE);
}

/* ---- CSV and JSON: the same fields ---- */

typedef struct {
    const char *name;
    int quoted;     /* a string in JSON */
    char text[192]; /* empty: null */
} Field;

enum { MAX_FIELDS = 40 };

static void add(Field *fields, int *count, const char *name, const char *text, int quoted) {
    Field *field = &fields[(*count)++];
    field->name = name;
    field->quoted = quoted;
    snprintf(field->text, sizeof field->text, "%s", text);
}

static void add_number(Field *fields, int *count, const char *name, double value, int known) {
    char text[32] = "";
    if (known && isfinite(value)) /* JSON has no NaN and no infinity */
        snprintf(text, sizeof text, "%.15g", value);
    add(fields, count, name, text, 0);
}

static int make_fields(const Report *r, const Row *row, Field f[MAX_FIELDS]) {
    const Problem *p = r->problem;
    int n = 0, ran = row_ran(row), known = ran && row->validated;
    char note[sizeof row->note];
    row_note(row, note, sizeof note);
    add(f, &n, "stage", r->stage->name, 1);
    add(f, &n, "variant", row->name, 1);
    add(f, &n, "direction", direction_name(row->direction), 1);
    add_number(f, &n, "batch", p->batch, 1);
    add_number(f, &n, "heads", p->heads, 1);
    add_number(f, &n, "kv_heads", p->kv_heads, 1);
    add_number(f, &n, "seqlen_q", p->seqlen_q, 1);
    add_number(f, &n, "seqlen_k", p->seqlen_k, 1);
    add_number(f, &n, "head_dim", p->head_dim, 1);
    add(f, &n, "dtype", dtype_name(p->dtype), 1);
    add(f, &n, "causal", p->causal ? "true" : "false", 0);
    add_number(f, &n, "latency_ms", row->latency_ms, ran);
    add_number(f, &n, "min_ms", row->min_ms, ran);
    add_number(f, &n, "tflops", tflops(r, row), ran);
    add_number(f, &n, "gbps", gbps(r, row), ran);
    add_number(f, &n, "tensor_bytes", (double)row->tensor_bytes, 1);
    add_number(f, &n, "workspace_bytes", (double)row->workspace_bytes, 1);
    add_number(f, &n, "read_gbps", r->bandwidth.read_gbps, r->bandwidth.read_gbps > 0);
    add_number(f, &n, "copy_gbps", r->bandwidth.copy_gbps, r->bandwidth.copy_gbps > 0);
    add_number(f, &n, "rmse", row->errors.rms, row->errors_known);
    add_number(f, &n, "worst_fp64_error", row->errors.worst, row->errors_known);
    add_number(f, &n, "worst_error", worst(row)->error, known);
    add_number(f, &n, "allowed_error", worst(row)->allowed, known);
    add(f, &n, "ok", ran && !row_ok(row) ? "false" : !known || row_unchecked(row) ? "" : "true", 0);
    for (int i = 0; i < MAX_SETTINGS && r->stage->settings[i].name; i++) {
        char value[32];
        setting_text(&r->stage->settings[i], p->settings[i], value, sizeof value);
        add(f, &n, r->stage->settings[i].name, value, 1);
    }
    add(f, &n, "inputs", r->load ? r->load : r->options->outliers ? "outliers" : "normal", 1);
    add(f, &n, "l2", r->options->warm ? "warm" : "cold", 1);
    add(f, &n, "device", r->device->name, 1);
    add_number(f, &n, "clock_mhz", r->device->clock_mhz, r->device->clock_mhz > 0);
    add(f, &n, "cuda", r->device->cuda_version, 1);
    add(f, &n, "commit", FA_COMMIT, 1);
    add(f, &n, "note", note, 1);
    return n;
}

/* CSV puts a quote inside a string twice, JSON after a backslash. */
static void print_quoted(const char *text, Format format) {
    putchar('"');
    for (; *text; text++) {
        if (*text == '"')
            putchar(format == FORMAT_CSV ? '"' : '\\');
        if (*text == '\\' && format == FORMAT_JSON)
            putchar('\\');
        putchar(*text);
    }
    putchar('"');
}

static void print_fields(const Report *r, const Row *row) {
    Field fields[MAX_FIELDS];
    int count = make_fields(r, row, fields);
    for (int i = 0; i < count; i++) {
        const Field *f = &fields[i];
        if (r->format == FORMAT_JSON)
            printf("%s\"%s\": ", i ? ", " : "{", f->name);
        else if (i)
            printf(",");
        if (*f->text && (r->format == FORMAT_JSON ? f->quoted : strpbrk(f->text, ",\"") != NULL))
            print_quoted(f->text, r->format);
        else
            printf("%s", *f->text ? f->text : r->format == FORMAT_JSON ? "null" : "");
    }
    printf("%s\n", r->format == FORMAT_JSON ? "}" : "");
}

static void csv_start(const Report *r) {
    Field fields[MAX_FIELDS];
    Row any = {.name = ""};
    int count = make_fields(r, &any, fields);
    for (int i = 0; i < count; i++)
        printf("%s%s", i ? "," : "", fields[i].name);
    printf("\n");
}

/* ---- the three calls ---- */

void report_start(const Report *r) {
    if (r->format == FORMAT_TABLE)
        table_start(r);
    else if (r->format == FORMAT_CSV)
        csv_start(r);
    flush_output(); /* a kernel may yet end the program */
}

void report_row(const Report *r, const Row *row) {
    if (r->format == FORMAT_TABLE)
        table_row(r, row);
    else
        print_fields(r, row);
    flush_output();
}

void report_end(const Report *r, const Row *rows, int count) {
    FILE *details = r->format == FORMAT_TABLE ? stdout : stderr;
    for (int i = 0; i < count; i++)
        if (r->format == FORMAT_TABLE && rows[i].workspace_count && row_ran(&rows[i]) &&
            (rows[i].direction == FORWARD || rows[i].direction == BACKWARD))
            print_workspace(&rows[i]);
    for (int i = 0; i < count; i++)
        if (r->format == FORMAT_TABLE && rows[i].errors_known && shows_accuracy(rows, count))
            print_accuracy(r, &rows[i]);
    for (int i = 0; i < count; i++)
        if (r->format == FORMAT_TABLE && rows[i].direction == BACKWARD && rows[i].validated)
            print_gradients(&rows[i]);
    for (int i = 0; i < count; i++) {
        const Row *row = &rows[i];
        if (!row_ran(row))
            continue;
        if (*row->damaged)
            fprintf(details, "%s: wrote past the end of %s\n", row->name, row->damaged);
        for (int c = 0; c < row->comparison_count; c++)
            if (!row->comparisons[c].ok) {
                fprintf(details, "%s: ", row->name);
                comparison_print(details, &row->comparisons[c]);
            }
        if (row_ok(row) && row_unchecked(row)) {
            char note[sizeof row->note];
            row_note(row, note, sizeof note);
            fprintf(details, "%s: %s\n", row->name, note);
        }
    }
    if (r->format == FORMAT_TABLE)
        print_verdict(r, rows, count);
    flush_output();
}
