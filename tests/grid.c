/* grid.c - every variant of one stage against the fp64 oracle, over shapes, masks, head groups, key lengths and inputs.
 *
 * Linked once a stage against that stage's table (its main.c with main renamed). How it is run: grid.h. The stage's own
 * settings rotate with the rest.
 *
 * An output passes if each row is within output_allowance of the oracle (check.h) and the worst error is at most twice
 * 00_naive's in the same dtype; if LSE agrees on its own; and if no guard strip behind a tensor was written to. A variant that
 * prepares its inputs is held against the oracle of those (quantised.h).
 */
#include "../common/check.h"
#include "../common/numeric.h"
#include "../common/oracle.h"
#include "../common/quantised.h"
#include "../common/random.h"
#include "grid.h"

/* Inputs that break something plain N(0,1) leaves whole. */
typedef enum { NORMAL, PEAKED, OUTLIER, EQUAL, VERY_NEGATIVE, ONE_HOT, V_MEAN, INPUT_COUNT } InputKind;
static const char *INPUT_NAMES[] = {
    "normal", "peaked", "outlier", "equal", "very negative", "one-hot", "V mean 0.5, growing"};

/* One case: the problem, its inputs on host and device, and what is right. */
typedef struct {
    Problem p;
    InputKind kind;
    int *lengths;       /* host; NULL: all keys exist */
    Tensors t;          /* device */
    HostTensors inputs; /* the same on the host */
    void *host_o;
    float *host_lse;
    double *o, *lse;    /* the oracle's */
    double score_size;  /* see check.h */
    double naive_error; /* 00_naive's worst error of O on this case */
} Case;

/* Draws q, k, v of the case's kind, rounds them to the dtype, and hands back what was rounded, as doubles. */
static void draw(Case *c, unsigned seed, double *q, double *k, double *v, void *device[3]) {
    const Problem *p = &c->p;
    size_t counts[3] = {query_elements(p), key_elements(p), key_elements(p)};
    double *values[3] = {q, k, v};
    const char *names[3] = {"Q", "K", "V"};
    void *host[3]; /* free_case frees them */
    for (int tensor = 0; tensor < 3; tensor++) {
        host[tensor] = host_alloc(counts[tensor], dtype_bytes(p->dtype));
        double mean = tensor == 2 ? (c->kind == V_MEAN ? 0.5 : 0) : c->kind == VERY_NEGATIVE ? (tensor == 0 ? 4 : -4) : 0;
        double std = c->kind == VERY_NEGATIVE && tensor < 2 ? 0.25 : 1;
        random_normal(p->dtype, host[tensor], counts[tensor], seed, tensor, mean, std);
        for (size_t i = 0; i < counts[tensor]; i++) {
            size_t row = i / p->head_dim;
            int d = i % p->head_dim;
            if (c->kind == EQUAL && tensor == 0)
                dtype_store(p->dtype, host[tensor], i, 0);
            if (c->kind == V_MEAN && tensor == 2) /* and 10 times as large at the end: tiles of keys differ */
                dtype_store(p->dtype, host[tensor], i,
                            dtype_to_double(p->dtype, host[tensor], i) * exp2(row % p->seqlen_k * 3.3 / p->seqlen_k));
            if (c->kind == OUTLIER && tensor < 2 && d == (int)(row * 7 % p->head_dim))
                dtype_store(p->dtype, host[tensor], i, 100);
            if (c->kind == ONE_HOT && tensor < 2) /* scores 0 and, where row and column hit the same d, +-100 */
                dtype_store(p->dtype, host[tensor], i,
                            d != (int)(row % p->head_dim) ? 0 : (row & 64 ? -1 : 1) * 10 * sqrt(sqrt((double)p->head_dim)));
            values[tensor][i] = dtype_to_double(p->dtype, host[tensor], i);
        }
        device[tensor] = device_allocate(counts[tensor] * dtype_bytes(p->dtype), names[tensor]);
        device_write(device[tensor], host[tensor], counts[tensor] * dtype_bytes(p->dtype));
    }
    c->score_size = score_size(p, host[0], host[1]);
    c->inputs = (HostTensors){host[0], host[1], host[2], NULL};
}

static Case make_case(Problem p, InputKind kind, int with_lengths, unsigned seed) {
    Case c = {.p = p, .kind = kind};
    if (with_lengths)
        c.lengths = draw_lengths(&p, seed, &c.t.key_lengths);
    size_t queries = query_elements(&p), keys = key_elements(&p), rows = row_count(&p);
    double *q = host_alloc(queries, sizeof *q), *k = host_alloc(keys, sizeof *k), *v = host_alloc(keys, sizeof *v);
    void *device[3];
    draw(&c, seed, q, k, v, device);
    c.t.q = device[0], c.t.k = device[1], c.t.v = device[2];
    c.t.o = device_allocate(queries * dtype_bytes(p.dtype), "O");
    c.t.lse = device_allocate(rows * sizeof(float), "LSE");
    c.host_o = host_alloc(queries, dtype_bytes(p.dtype));
    c.host_lse = host_alloc(rows, sizeof(float));
    c.o = host_alloc(queries, sizeof(double));
    c.lse = host_alloc(rows, sizeof(double));
    oracle_forward(&p, c.lengths, q, k, v, c.o, c.lse);
    free(q), free(k), free(v);
    return c;
}

static void free_case(Case *c) {
    void *device[] = {(void *)c->t.q, (void *)c->t.k, (void *)c->t.v, c->t.o, c->t.lse, (void *)c->t.key_lengths};
    for (size_t i = 0; i < sizeof device / sizeof *device; i++)
        device_free(device[i]);
    void *host[] = {c->inputs.q, c->inputs.k, c->inputs.v, c->host_o, c->host_lse, c->o, c->lse, c->lengths};
    for (size_t i = 0; i < sizeof host / sizeof *host; i++)
        free(host[i]);
}

static void print_case(const Case *c) { print_problem(&c->p, c->lengths, INPUT_NAMES[c->kind]); }

static int all_zero(const Buffer *buffer) {
    unsigned char *bytes = host_alloc(buffer->bytes, 1);
    size_t i = 0;
    device_read(bytes, buffer->pointer, buffer->bytes);
    while (i < buffer->bytes && bytes[i] == 0)
        i++;
    free(bytes);
    return i == buffer->bytes;
}

/* Runs one variant on poisoned outputs and workspace, and reads O and LSE back into the case. Returns what it wrote past the end
 * of or left in disorder, or NULL. If it prepares its inputs and `comparisons` is not NULL, they are filled in. */
static const char *launch_variant(const Variant *variant, Case *c, Comparison *comparisons) {
    Buffer workspace[MAX_WORKSPACE_BUFFERS] = {0};
    int buffers = variant->plan ? variant->plan(&c->p, workspace) : 0, prepares = variant_prepares(variant, &c->p);
    for (int i = 0; i < buffers; i++) {
        workspace[i].pointer = device_allocate(workspace[i].bytes, workspace[i].purpose); /* arrives poisoned */
        if (workspace[i].zeroed) {
            void *zeros = calloc(workspace[i].bytes, 1);
            device_write(workspace[i].pointer, zeros, workspace[i].bytes);
            free(zeros);
        }
    }
    size_t o_bytes = query_elements(&c->p) * dtype_bytes(c->p.dtype), lse_bytes = row_count(&c->p) * sizeof(float);
    device_poison(c->t.o, o_bytes);
    device_poison(c->t.lse, lse_bytes);
    if (prepares)
        variant->prepare(&c->p, &c->t, workspace);
    variant->launch(&c->p, &c->t, workspace);
    device_synchronize();
    const char *damaged = device_damaged();
    device_read(c->host_o, c->t.o, o_bytes);
    device_read(c->host_lse, c->t.lse, lse_bytes);
    if (prepares && comparisons)
        compare_quantised(&c->p, variant, c->lengths, c->t.key_lengths, &c->inputs, workspace, c->host_o, c->host_lse,
                          REFERENCE_ORACLE, comparisons);
    for (int i = 0; i < buffers; i++) {
        if (workspace[i].zeroed && !all_zero(&workspace[i]))
            damaged = damaged ? damaged : workspace[i].purpose;
        device_free(workspace[i].pointer);
    }
    return damaged;
}

/* The same for a variant that prepares its inputs: all five comparisons count. */
static int run_prepared_variant(const Variant *variant, Case *c) {
    Comparison comparisons[QUANTISED_COMPARISONS];
    const char *damaged = launch_variant(variant, c, comparisons);
    int good = !damaged;
    for (int i = 0; i < QUANTISED_COMPARISONS; i++)
        good = good && comparisons[i].ok;
    if (good)
        return 1;
    print_case(c);
    if (damaged)
        diag("wrote past the end of %s, or left no zeros there", damaged);
    for (int i = 0; i < QUANTISED_COMPARISONS; i++)
        if (!comparisons[i].ok)
            comparison_print(stderr, &comparisons[i]);
    return 0;
}

/* Runs one variant on one case. Returns whether all of it is right; explains on stderr if not. */
static int run_variant(const Variant *variant, Case *c) {
    if (variant_prepares(variant, &c->p))
        return run_prepared_variant(variant, c);
    const char *damaged = launch_variant(variant, c, NULL);
    Comparison o = compare_output_double(&c->p, c->host_o, c->o, c->lse, c->score_size);
    Comparison lse = compare_lse_double(&c->p, c->host_lse, c->lse, c->score_size);
    int good = o.ok && lse.ok && !damaged;
    if (variant == &naive_variant)
        c->naive_error = o.max_error;
    double want = 0;
    for (size_t i = 0; i < query_elements(&c->p); i++)
        want = fmax(want, fabs(c->o[i]));
    /* the floor: one rounding of the largest output */
    double allowed = 2 * c->naive_error + dtype_epsilon(c->p.dtype) * want;
    int as_good_as_naive = o.max_error <= allowed;
    if (good && as_good_as_naive)
        return 1;
    print_case(c);
    if (damaged)
        diag("wrote past the end of %s, or left no zeros there", damaged);
    if (!as_good_as_naive)
        diag("worst error %g, but 00_naive's is %g", o.max_error, c->naive_error);
    if (!o.ok)
        comparison_print(stderr, &o);
    if (!lse.ok)
        comparison_print(stderr, &lse);
    return 0;
}

/* Settings take their values in turn, no two of them in step. Of those that are numbers at most one is given, because they
 * exclude each other; it is one of few: what matters is none, one, some, and more than there are tiles. */
static void rotate_settings(Problem *p, int index) {
    static const int numbers[] = {1, 2, 3, 7, 64, 200};
    int given = index / 3 % 3; /* which of the numbers, if any */
    index += index / 13;       /* out of step with batch, heads and inputs */
    for (int i = 0; i < MAX_SETTINGS && stage.settings[i].name; i++) {
        const Setting *s = &stage.settings[i];
        int choices = 1;
        for (const char *c = s->choices ? s->choices : "flag|"; *c; c++)
            choices += *c == '|';
        if (s->max) {
            int number = numbers[index % 6];
            p->settings[i] = given-- ? 0 : number < s->max ? number : s->max;
        } else {
            p->settings[i] = index % choices;
            index /= choices;
        }
    }
}

static int has_numbers(void) {
    for (int i = 0; i < MAX_SETTINGS && stage.settings[i].name; i++)
        if (stage.settings[i].max)
            return 1;
    return 0;
}

/* Without atomics nothing may depend on the order of threads and blocks: 100 runs, the same bits. (A race would show, too.) */
static void test_repeats(const Variant *variant) {
    Problem p = problem_of_shape(0, variant->max_seqlen_q ? variant->max_seqlen_q : 129, 257, 64, DTYPE_FP16, 1);
    p.batch = 1, p.heads = 4, p.kv_heads = 2;
    Case c = make_case(p, NORMAL, 0, 1);
    size_t o_bytes = query_elements(&p) * dtype_bytes(p.dtype), lse_bytes = row_count(&p) * sizeof(float);
    void *o = host_alloc(o_bytes, 1), *lse = host_alloc(lse_bytes, 1);
    int different = 0;
    for (int run = 0; run < 100; run++) {
        launch_variant(variant, &c, NULL);
        if (run == 0)
            memcpy(o, c.host_o, o_bytes), memcpy(lse, c.host_lse, lse_bytes);
        different += memcmp(o, c.host_o, o_bytes) != 0 || memcmp(lse, c.host_lse, lse_bytes) != 0;
    }
    ok(!different, "%s/%s gives the same bits 100 times", stage.name, variant->name);
    free(o), free(lse);
    free_case(&c);
}

int main(int argc, char **argv) {
    const Grid grid = grid_options(argc, argv, &naive_variant);
    int first = strcmp(stage.name, "00_naive") == 0 ? 0 : 1; /* the naive kernel is examined in its own stage only */

    int rounds = has_numbers() ? 4 : 1; /* so that every pair meets several numbers */
    static const int head_dims[] = {64, 128, 8, 32, 40, 96, 256};
    for (int dtype = 0; dtype < DTYPE_COUNT; dtype++)
        for (size_t d = 0; d < sizeof head_dims / sizeof *head_dims; d++)
            for (int causal = 0; causal < 2; causal++) {
                int cases[MAX_VARIANTS + 1] = {0}, wrong[MAX_VARIANTS + 1] = {0};
                for (int index = 0; index < rounds * LENGTH_COUNT * LENGTH_COUNT; index++) {
                    /* In fp16, D = 64 takes all pairs, D = 128 a third of them for each mask, the others fewer, and on the CPU
                     * so do the other dtypes, whose code differs in a conversion; quick an eighth of that */
                    int every = grid.quick ? 8 : 1;
                    if (d > 0)
                        every *= d == 1 ? 3 : 16;
                    if (dtype != DTYPE_FP16 && device_properties()->is_cpu)
                        every *= 4;
                    if ((index + causal + (int)d) % every)
                        continue;
                    int number = index + 3 * causal + 5 * (int)d, pair = index % (LENGTH_COUNT * LENGTH_COUNT);
                    InputKind kind = number % INPUT_COUNT;
                    Problem p = problem_of_shape(number, LENGTHS[pair / LENGTH_COUNT], LENGTHS[pair % LENGTH_COUNT],
                                                 head_dims[d], dtype, causal);
                    rotate_settings(&p, number);
                    if (kind == PEAKED)
                        p.scale *= 6;
                    int takers = 0;
                    for (int i = first; i < grid.count; i++)
                        takers += !variant_refuses(grid.variants[i], &p);
                    if (!takers)
                        continue;
                    Case c = make_case(p, kind, number % 4 < 2, number);
                    for (int i = 0; i < grid.count; i++)
                        if (!variant_refuses(grid.variants[i], &p)) {
                            cases[i]++;
                            if (wrong[i] < 3 || grid.verbose) /* three examples are enough */
                                wrong[i] += !run_variant(grid.variants[i], &c);
                        }
                    free_case(&c);
                }
                for (int i = first; i < grid.count; i++)
                    if (cases[i])
                        ok(!wrong[i], "%s/%s %s D%d %s: %d cases", stage.name, grid.variants[i]->name, dtype_name(dtype),
                           head_dims[d], causal ? "causal" : "full", cases[i]);
            }
    for (int i = first; i < grid.count && !grid.quick; i++)
        test_repeats(grid.variants[i]);
    return tap_done();
}
