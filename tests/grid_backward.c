/* grid_backward.c - the gradients of every variant of a backward stage against the fp64 oracle, over shapes, masks, head
 * groups, key lengths and inputs; what grid.c is for a forward stage. How it is run: grid.h. With --quick it ends at the first
 * case that is wrong.
 *
 * Each case runs the stage's own forward pass first. A gradient passes if its worst error is at most 3 times that of the
 * naive gradients in the same dtype, plus one rounding of the largest element, plus what fp32 sums leave where dS cancels;
 * if it is exactly 0 where the mask leaves nothing; and if no guard strip behind a tensor was written to.
 */
#include "../common/check.h"
#include "../common/gradient.h"
#include "../common/numeric.h"
#include "../common/oracle.h"
#include "../common/random.h"
#include "grid.h"

/* Inputs that break something plain N(0,1) leaves whole. */
typedef enum { NORMAL, PEAKED, K_MEAN, EQUAL, V_MEAN, INPUT_COUNT } InputKind;
static const char *INPUT_NAMES[] = {"normal", "peaked", "K mean 2", "equal", "V mean 0.5"};

/* One case: the problem, its inputs on the device, and what is right. */
typedef struct {
    Problem p;
    InputKind kind;
    int *lengths; /* host; NULL: all keys exist */
    Tensors t;    /* device */
    double *want[GRADIENT_COUNT];
    double fp32_floor;                  /* what rounding in fp32 leaves of a dS that cancels, as a gradient */
    double naive_error[GRADIENT_COUNT]; /* the naive gradients' worst error on this case */
} Case;

/* Draws one tensor, rounded to the dtype: on the device, and as doubles on the host. */
static double *draw(const Case *c, unsigned seed, int stream, size_t count, double mean, double std, const void **device) {
    void *host = host_alloc(count, dtype_bytes(c->p.dtype));
    double *values = host_alloc(count, sizeof *values);
    random_normal(c->p.dtype, host, count, seed, stream, mean, std);
    for (size_t i = 0; i < count; i++)
        values[i] = dtype_to_double(c->p.dtype, host, i);
    void *memory = device_allocate(count * dtype_bytes(c->p.dtype), "input");
    device_write(memory, host, count * dtype_bytes(c->p.dtype));
    free(host);
    *device = memory;
    return values;
}

static Case make_case(Problem p, InputKind kind, int with_lengths, unsigned seed) {
    Case c = {.p = p, .kind = kind};
    if (with_lengths)
        c.lengths = draw_lengths(&p, seed, &c.t.key_lengths);
    size_t queries = query_elements(&p), keys = key_elements(&p);
    double *q = draw(&c, seed, 0, queries, 0, kind == EQUAL ? 0 : 1, &c.t.q);
    double *k = draw(&c, seed, 1, keys, kind == K_MEAN ? 2 : 0, 1, &c.t.k);
    double *v = draw(&c, seed, 2, keys, kind == V_MEAN ? 0.5 : 0, 1, &c.t.v);
    double *d_o = draw(&c, seed, 3, queries, 0, 1, &c.t.d_o);
    c.fp32_floor = 0x1p-20 * p.scale * p.head_dim * 5 * 5; /* |dO| |V| <= about D, max|K| and max|Q| about 5 */
    for (int which = 0; which < GRADIENT_COUNT; which++)
        c.want[which] = host_alloc(gradient_elements(&p, which), sizeof(double));
    oracle_backward(&p, c.lengths, q, k, v, d_o, c.want[GRADIENT_Q], c.want[GRADIENT_K], c.want[GRADIENT_V]);
    free(q), free(k), free(v), free(d_o);

    size_t element = dtype_bytes(p.dtype);
    c.t.o = device_allocate(queries * element, "O");
    c.t.lse = device_allocate(row_count(&p) * sizeof(float), "LSE");
    c.t.dq = device_allocate(queries * element, "dQ");
    c.t.dk = device_allocate(keys * element, "dK");
    c.t.dv = device_allocate(keys * element, "dV");
    stage.forward->launch(&p, &c.t, NULL);
    device_synchronize();
    return c;
}

static void free_case(Case *c) {
    void *device[] = {(void *)c->t.q,           (void *)c->t.k,   (void *)c->t.v, c->t.o,  c->t.lse,
                      (void *)c->t.key_lengths, (void *)c->t.d_o, c->t.dq,        c->t.dk, c->t.dv};
    for (size_t i = 0; i < sizeof device / sizeof *device; i++)
        device_free(device[i]);
    for (int which = 0; which < GRADIENT_COUNT; which++)
        free(c->want[which]);
    free(c->lengths);
}

static void print_case(const Case *c) { print_problem(&c->p, c->lengths, INPUT_NAMES[c->kind]); }

/* Whether the mask leaves this row of dQ, or this key, nothing at all. */
static int is_cut_off(const Case *c, Gradient which, int batch, int row) {
    int length = key_length(&c->p, c->lengths, batch);
    return which == GRADIENT_Q ? visible_keys(&c->p, length, row) == 0
                               : row >= visible_keys(&c->p, length, c->p.seqlen_q - 1);
}

/* Reads a gradient back and compares it. The allowance is one number, except that cut-off rows are exactly 0. */
static Comparison compare(const Case *c, Gradient which, const void *device, double allowed) {
    const Problem *p = &c->p;
    size_t elements = gradient_elements(p, which);
    int rows = which == GRADIENT_Q ? p->seqlen_q : p->seqlen_k, heads = which == GRADIENT_Q ? p->heads : p->kv_heads;
    void *host = host_alloc(elements, dtype_bytes(p->dtype));
    device_read(host, device, elements * dtype_bytes(p->dtype));
    Comparison result = comparison_start(gradient_name(which));
    for (size_t first = 0; first < elements; first += p->head_dim) {
        double got[MAX_HEAD_DIM];
        size_t row = first / p->head_dim;
        int batch = (int)(row / rows / heads);
        for (int d = 0; d < p->head_dim; d++)
            got[d] = dtype_to_double(p->dtype, host, first + d);
        compare_row(&result, batch, (int)(row / rows % heads), (int)(row % rows), got, c->want[which] + first, p->head_dim,
                    is_cut_off(c, which, batch, (int)(row % rows)) ? 0 : allowed);
    }
    free(host);
    return result;
}

static double largest(const double *values, size_t count) {
    double most = 0;
    for (size_t i = 0; i < count; i++)
        most = fmax(most, fabs(values[i]));
    return most;
}

/* Runs one variant on one case. Returns whether all of it is right; explains on stderr if not. */
static int run_variant(const Variant *variant, Case *c) {
    const Problem *p = &c->p;
    Buffer workspace[MAX_WORKSPACE_BUFFERS] = {0};
    int buffers = variant->plan ? variant->plan(p, workspace) : 0;
    for (int i = 0; i < buffers; i++)
        workspace[i].pointer = device_allocate(workspace[i].bytes, workspace[i].purpose); /* arrives poisoned */
    void *gradients[GRADIENT_COUNT] = {c->t.dq, c->t.dk, c->t.dv};
    for (int which = 0; which < GRADIENT_COUNT; which++)
        device_poison(gradients[which], gradient_elements(p, which) * dtype_bytes(p->dtype));
    variant->launch(p, &c->t, workspace);
    device_synchronize();
    const char *damaged = device_damaged();
    for (int i = 0; i < buffers; i++)
        device_free(workspace[i].pointer);

    int good = !damaged;
    for (int which = 0; which < GRADIENT_COUNT; which++) {
        double u = dtype_epsilon(p->dtype), most = largest(c->want[which], gradient_elements(p, which));
        /* the naive gradients, which have nobody to be measured by: a few roundings of the largest element. P = 1 in single
         * keys leaves dO . O of a rounded O, hence the second term */
        double allowed = variant == stage.reference ? 4 * u * most + u * p->scale * p->head_dim * 4 + c->fp32_floor
                                                    : 3 * c->naive_error[which] + u * most + c->fp32_floor;
        Comparison comparison = compare(c, which, gradients[which], allowed);
        if (variant == stage.reference)
            c->naive_error[which] = comparison.max_error;
        if (!comparison.ok && good)
            print_case(c);
        if (!comparison.ok)
            comparison_print(stderr, &comparison);
        good = good && comparison.ok;
    }
    if (damaged) {
        print_case(c);
        diag("wrote past the end of %s", damaged);
    }
    return good;
}

/* ---- against differences of the forward pass ---- */

/* The loss whose gradient with respect to O is d_o: sum of d_o * O, in fp64. */
static double loss(const Problem *p, const double *q, const double *k, const double *v, const double *d_o) {
    double *o = host_alloc(query_elements(p), sizeof *o), *lse = host_alloc(row_count(p), sizeof *lse), sum = 0;
    oracle_forward(p, NULL, q, k, v, o, lse);
    for (size_t i = 0; i < query_elements(p); i++)
        sum += d_o[i] * o[i];
    free(o), free(lse);
    return sum;
}

/* Each element of Q, K and V is moved a little both ways; (loss(x + h) - loss(x - h)) / 2h is its gradient, up to h^2 =
 * 1e-8. No formula of the backward pass takes part. */
static void test_differences(const Grid *grid) {
    Problem p = problem_of_shape(0, 5, 7, 64, DTYPE_FP16, 1);
    p.batch = 1, p.heads = 2, p.kv_heads = 1;
    const double h = 1e-4;
    const unsigned seed = 11;
    Case c = make_case(p, NORMAL, 0, seed);
    const void *device[4]; /* drawn a second time, for the doubles */
    double *inputs[3], *d_o = draw(&c, seed, 3, query_elements(&p), 0, 1, &device[3]);
    for (int i = 0; i < 3; i++)
        inputs[i] = draw(&c, seed, i, gradient_elements(&p, (Gradient)i), 0, 1, &device[i]);
    for (int i = 0; i < 4; i++)
        device_free((void *)device[i]);
    for (int which = 0; which < GRADIENT_COUNT; which++)
        for (size_t i = 0; i < gradient_elements(&p, which); i++) {
            double x = inputs[which][i];
            inputs[which][i] = x + h;
            double above = loss(&p, inputs[0], inputs[1], inputs[2], d_o);
            inputs[which][i] = x - h;
            double below = loss(&p, inputs[0], inputs[1], inputs[2], d_o);
            inputs[which][i] = x;
            c.want[which][i] = (above - below) / (2 * h);
        }
    for (int i = 0; i < grid->count; i++)
        ok(run_variant(grid->variants[i], &c), "%s/%s agrees with central differences", stage.name, grid->variants[i]->name);
    for (int i = 0; i < 3; i++)
        free(inputs[i]);
    free(d_o);
    free_case(&c);
}

/* Two launches of a deterministic variant leave the same bits. */
static void test_bit_equality(const Variant *variant, int runs) {
    Problem p = problem_of_shape(0, 129, 257, 64, DTYPE_FP16, 1);
    p.batch = 2, p.heads = 4, p.kv_heads = 2;
    Case c = make_case(p, NORMAL, 0, 7);
    size_t bytes[GRADIENT_COUNT];
    void *first[GRADIENT_COUNT], *again, *device[GRADIENT_COUNT] = {c.t.dq, c.t.dk, c.t.dv};
    Buffer workspace[MAX_WORKSPACE_BUFFERS] = {0};
    int buffers = variant->plan(&p, workspace), equal = 1;
    for (int i = 0; i < buffers; i++)
        workspace[i].pointer = device_allocate(workspace[i].bytes, workspace[i].purpose);
    for (int run = 0; run < runs; run++) {
        variant->launch(&p, &c.t, workspace);
        device_synchronize();
        for (int which = 0; which < GRADIENT_COUNT; which++) {
            bytes[which] = gradient_elements(&p, which) * dtype_bytes(p.dtype);
            again = host_alloc(bytes[which], 1);
            device_read(again, device[which], bytes[which]);
            equal &= run == 0 || memcmp(first[which], again, bytes[which]) == 0;
            if (run == 0)
                first[which] = again;
            else
                free(again);
        }
    }
    ok(equal, "%s/%s: the same bits in %d runs", stage.name, variant->name, runs);
    for (int i = 0; i < buffers; i++)
        device_free(workspace[i].pointer);
    for (int which = 0; which < GRADIENT_COUNT; which++)
        free(first[which]);
    free_case(&c);
}

int main(int argc, char **argv) {
    const Grid grid = grid_options(argc, argv, stage.reference);
    static const int head_dims[] = {64, 128};
    for (int dtype = 0; dtype < DTYPE_COUNT; dtype++)
        for (size_t d = 0; d < sizeof head_dims / sizeof *head_dims; d++)
            for (int causal = 0; causal < 2; causal++) {
                int cases = 0, wrong[MAX_VARIANTS + 1] = {0}, wrong_total = 0;
                Problem any = {.head_dim = head_dims[d], .dtype = dtype};
                if (variant_refuses(stage.forward, &any))
                    continue;
                for (int index = 0; index < LENGTH_COUNT * LENGTH_COUNT; index++) {
                    /* On a GPU D = 64 takes all pairs of lengths, D = 128 a third of them. On the CPU half of that for each mask,
                     * and a quarter of that for bf16, whose code differs in a conversion */
                    int every = (d == 0 ? 1 : 3) * (grid.quick ? 8 : 1);
                    if (device_properties()->is_cpu)
                        every *= 2 * (dtype == DTYPE_FP16 ? 1 : 4);
                    if ((index + causal + (int)d) % every || (grid.quick && wrong_total))
                        continue;
                    int number = index + 3 * causal + 5 * (int)d;
                    InputKind kind = number / 2 % INPUT_COUNT;
                    Problem p = problem_of_shape(number, LENGTHS[index / LENGTH_COUNT], LENGTHS[index % LENGTH_COUNT],
                                                 head_dims[d], dtype, causal);
                    if (kind == PEAKED)
                        p.scale *= 4;
                    Case c = make_case(p, kind, number % 4 < 2, number);
                    for (int i = 0; i < grid.count; i++)
                        if (wrong[i] < 3 || grid.verbose) /* three examples are enough */
                            wrong[i] += !run_variant(grid.variants[i], &c);
                    for (int i = 0; i < grid.count; i++)
                        wrong_total += wrong[i];
                    cases++;
                    free_case(&c);
                }
                for (int i = 0; i < grid.count; i++)
                    ok(!wrong[i], "%s/%s %s D%d %s: %d cases", stage.name, grid.variants[i]->name, dtype_name(dtype),
                       head_dims[d], causal ? "causal" : "full", cases);
                if (grid.quick && wrong_total)
                    return tap_done();
            }
    test_differences(&grid);
    for (int i = 1; i < grid.count; i++)
        if (strcmp(grid.variants[i]->name, "two_pass") == 0)
            test_bit_equality(grid.variants[i], grid.quick ? 10 : 100);
    return tap_done();
}
