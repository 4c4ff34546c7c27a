/* report.c - what report.c prints of rows that are made here: the text is compared word by word. How the figures in the rows come
 * about is another matter (figures.c), and so is the verdict.
 */
#define _POSIX_C_SOURCE 200809L
#include "../common/harness/row.h"
#include "../common/harness/report.h"
#include "capture.h"
#include "tap.h"

#include <string.h>

static PreparedRounding no_values(const Problem *p, const Buffer *workspace, float *q, float *k, float *v) {
    (void)p, (void)workspace, (void)q, (void)k, (void)v;
    return (PreparedRounding){0};
}
static const Preparation fill = {.name = "fill", .values = no_values, .key_bytes = 1}, fill_the_cache = {.name = "fill the cache"};
static const Stage plain = {.name = "09_test", .variants = {{.name = "short"}, {.name = "a_long_name"}}};
static const Stage decoding = {.name = "09_test",
                               .variants = {{.name = "v", .preparation = &fill}},
                               .kind = DECODING,
                               .settings = {{.name = "pieces", .choices = "auto", .max = 9},
                                            {.name = "round"},
                                            {.name = "kind", .choices = "one|two|three"}}};
static const Stage with_blocks = {
    .name = "09_test", .variants = {{.name = "v"}}, .settings = {{.name = "spec", .max = TEXT}, {.name = "round"}}};
static const Variant forward_pass = {.name = "08_test/v"};
static const Stage backward = {.name = "09_test", .variants = {{.name = "v"}}, .kind = BACKWARD, .forward = &forward_pass};

static DeviceProperties device = {
    .name = "A \"chip\", \\ fast", .platform = "sm_42", .clock_mhz = 1980, .cuda_version = "13.0"};
static Options options; /* what is not set in a test is 0 again in the next */

typedef struct {
    Run run;
    const Row *rows;
    int count, end;
} Job;
static void print(void *context) {
    Job *job = context;
    Run *run = &job->run;
    run->row_count = job->count;
    if (job->count > 1)
        run->rows[job->count] = job->rows[1]; /* which is none of them, and has a name of its own */
    strcpy(run->rows[job->count].name, "beyond");
    strcpy(run->rows[job->count].damaged, "Q");
    run->rows[job->count].run = run;
    report_start(run);
    for (int i = 0; i < job->count; i++) {
        run->rows[i] = job->rows[i];
        run->rows[i].run = run;
        run->rows[i].variant = job->rows[i].role == ROW_REFERENCE ? &naive_variant : &run->stage->variants[0];
        run->rows[i].passes = job->rows[i].passes ? job->rows[i].passes : FORWARD_PASS;
        report_row(&run->rows[i]);
    }
    if (job->end)
        report_end(run);
}

/* Whether these lines come first, or are among the others. */
static void prints(Job job, const char *want, const char *name) {
    char *text = captured(STDOUT_FILENO, print, &job);
    int is_there = strncmp(text, want, strlen(want)) == 0 || (job.end && strstr(text, want));
    if (!ok(is_there && !strstr(text, "beyond"), "%s", name))
        diag("printed:\n%s\nexpected:\n%s", text, want);
    free(text);
}

static const Problem P = {
    .batch = 1, .heads = 4, .kv_heads = 2, .seqlen_q = 500, .seqlen_k = 1000, .head_dim = 64, .scale = 0.125f};
#define REPORT(...)                                                                                                         \
    {                                                                                                                       \
        .run = {.p = &P, .device = &device, .options = &options, .reference = &naive_variant, __VA_ARGS__ }                 \
    }

/* The first lines of most tables; and a row's figures where others are what counts. */
#define DEVICE "device   A \"chip\", \\ fast, sm_42\n"
#define PROBLEM(more) "problem  forward, batch 1, heads 4/2, seqlen 500x1000, head_dim 64, fp16, full" more "\n"
#define HEADING(more) DEVICE PROBLEM(more)
#define ON_CPU                                                                                                              \
    "device   A processor, CPU device\n" PROBLEM("")                                                                          \
    "times    are the simulator's: they say nothing about a GPU, not even which variant is faster\n"
#define CSV_TITLES                                                                                                          \
    "stage,variant,direction,batch,heads,kv_heads,seqlen_q,seqlen_k,head_dim,dtype,causal,lengths,scale,settings,"          \
    "inputs,seed,l2,iters,runs,latency_ms,min_ms,iqr_ms,noisy,tflops,dense_tflops,percent_of_peak,gbps,"                    \
    "tensor_bytes,workspace_bytes,gpu_bytes,gpu_flops_per_byte,read_gbps,copy_gbps,rmse,worst_fp64_error,worst_error,"      \
    "allowed_error,ok,device,clock_mhz,cuda,commit,note\n"
#define TAKES(ms) .latency_ms = ms, .min_ms = 5e-4, .tensor_bytes = 1024

static Comparison comparison(const char *tensor, int is_ok, double error, double allowed) {
    return (Comparison){.ok = is_ok, .tensor = tensor, .error = error, .allowed = allowed, .severity = error / allowed};
}

static void test_table(void) {
    /* 4 * 4 heads * 500 * 1000 * 64 = 512 MFLOPs */
    Row rows[] = {
        {.name = "00_naive",
         .role = ROW_REFERENCE,
         .peak_tflops = 5123,
         .latency_ms = 99.94,
         .min_ms = 9.994,
         .tensor_bytes = 1 << 20,
         .workspace_bytes = (1 << 20) - 1024,
         .speed_ratio = 1,
         .comparison_count = 2,
         .workspace = {{.purpose = "S", .bytes = 700 << 10}, {.purpose = "P", .bytes = (size_t)3 << 30}},
         .workspace_count = 2},
        {.name = "09_test/short", .latency_ms = 1, .min_ms = 0.99949, .tensor_bytes = (1 << 30) - (5 << 20)},
        {.name = "09_test/a_long_name",
         .latency_ms = 123.4,
         .min_ms = 0.000999,
         .tensor_bytes = (size_t)5 << 30,
         .speed_ratio = 0.0999,
         .comparison_count = 2},
        {.name = "09_test/edges", .latency_ms = 100, .min_ms = 10, .tensor_bytes = 1 << 30, .speed_ratio = 0.1},
        {.name = "09_test/none", .note = "out of memory: needs 3.00 GiB"},
    };
    rows[3].workspace[0] = rows[4].workspace[0] = (Buffer){.purpose = "m", .bytes = 1024};
    rows[3].workspace_count = rows[4].workspace_count = 1;
    rows[0].comparisons[0] = comparison("O", 1, 1.23e-5, 0.5), rows[0].comparisons[1] = comparison("LSE", 1, 2, 3);
    rows[2].comparisons[0] = comparison("O", 1, 1, 2), rows[2].comparisons[1] = comparison("LSE", 0, 7, 5);
    Job job = REPORT(.stage = &plain);
    job.rows = rows;
    job.count = 5;
    prints(job,
           HEADING("")
           "variant              latency     min  TFLOP/s  of peak  tensors + workspace vs naive    error / allowed\n"
           "00_naive             99.9 ms 9.99 ms   0.0051  0.0001%  1.00 MiB + 1023 KiB    1.00x  1.2e-05 / 5.0e-01\n"
           "09_test/short        1.00 ms  999 us     0.51        -         1019 MiB + 0        -      not validated\n"
           "09_test/a_long_name   123 ms 1.00 us   0.0041        -         5.00 GiB + 0  0.0999x  7.0e+00 / 5.0e+00\n"
           "09_test/edges         100 ms 10.0 ms   0.0051        -         1.00 GiB + 0    0.10x      not validated\n"
           "09_test/none          out of memory: needs 3.00 GiB\n",
           "the table: digits, units, columns; the bad comparison rather than the first");
    job.end = 1;
    prints(job, "\nworkspace  00_naive: S 700 KiB, P 3.00 GiB\nworkspace  09_test/edges: m 1.00 KiB\n09_test/a", "workspace by purpose");
    rows[1].runs = rows[3].runs = 23, rows[1].iqr_ms = 0.0101, rows[3].iqr_ms = 1;
    prints(
        job,
        "\nworkspace  09_test/edges: m 1.00 KiB\n"
        "noise      09_test/short: the middle half of 23 runs spans 1.01% of the median, more than 1%\n"
        "09_test/a_long_name: ",
        "a remark on noise over 1%, and on no other");

    static int lengths[] = {1, 2, 3, 4, 5, 6, 7, 8, 9};
    Problem other = P;
    other.batch = 9, other.causal = 1, other.scale = 2, other.dtype = DTYPE_BF16;
    job = (Job)REPORT(.stage = &plain);
    options.key_lengths = lengths;
    job.run.p = &other;
    options.warm = options.outliers = 1;
    prints(job,
           DEVICE "problem  forward, batch 9, heads 4/2, seqlen 500x1000, head_dim 64, bf16, causal, scale 2, key lengths\n"
           "           1,2,3,4,5,6,7,8,..., inputs with outliers, warm L2\n",
           "the problem");
    options.load = "folder";
    other.batch = 8;
    options.warm = 0;
    prints(job,
           DEVICE "problem  forward, batch 8, heads 4/2, seqlen 500x1000, head_dim 64, bf16, causal, scale 2, key lengths "
           "1,2,3,4,5,6,7,8,\n"
           "           from folder\n",
           "the problem, from files");
    options.outliers = 0;
}

/* A name that takes more than the line has room for: the gaps behind it become smaller, and no line is too long. */
static void test_narrow(void) {
    static const Stage of_long_names = {.name = "07_a_long_name_of_a_stage",
                                        .variants = {{.name = "shares", .preparation = &fill_the_cache}},
                                        .kind = DECODING};
    Row rows[] = {
        {.name = "00_naive", .latency_ms = 1, .min_ms = 1, .tensor_bytes = 1024},
        {.name = "07_a_long_name_of_a_stage/fill the cache+shares", .latency_ms = 1, .min_ms = 1, .tensor_bytes = 1024},
        {.name = "07_a_long_name_of_a_stage/shares.", .latency_ms = 1, .min_ms = 1, .tensor_bytes = 1024}};
    Job job = REPORT(.stage = &of_long_names, .bandwidth = {.copy_gbps = 4000, .read_gbps = 5000});
    job.rows = rows, job.count = 3;
    prints(job,
           HEADING("")
           "memory   gives 5000 GB/s when it is read, 4000 GB/s when it is copied (bytes read and written)\n"
           "variant                          latency     min   GB/s of read of copy  tensors + workspace vs naive    error "
           "/ allowed\n"
           "00_naive                         1.00 ms 1.00 ms   1.03 0.0206% 0.0258%         1.00 KiB + 0        -      not "
           "validated\n"
           "07_a_long_name_of_a_stage/fill the cache+shares 1.00 ms 1.00 ms 1.03 0.0206% 0.0258% 1.00 KiB + 0   -      not "
           "validated\n"
           "07_a_long_name_of_a_stage/shares. 1.00 ms 1.00 ms  1.03 0.0206% 0.0258%         1.00 KiB + 0        -      not "
           "validated\n",
           "a long name, and one that just touches the next column");
}

/* On the CPU device: nothing that the clock says about speed, but bytes. */
static void test_cpu(void) {
    DeviceProperties cpu = {.name = "A processor", .platform = "CPU device", .is_cpu = 1};
    Row rows[] = {
        {.name = "00_naive",
         .role = ROW_REFERENCE,
         .latency_ms = 12.3,
         .tensor_bytes = 1024,
         .runs = 9,
         .iqr_ms = 5,
         .gpu_bytes = 1e6,
         .peak_tflops = 1,
         .speed_ratio = 1},
        {.name = "09_test/a_long_name", .latency_ms = 45.6, .tensor_bytes = 1024, .gpu_bytes = 264 * 1024},
        {.name = "09_test/edges", .latency_ms = 78.9, .tensor_bytes = 1024, .gpu_bytes = NAN},
    };
    Job job = REPORT(.stage = &plain);
    job.run.device = &cpu;
    job.rows = rows;
    job.count = 3;
    prints(job,
           ON_CPU
           "variant             simulated bytes moved FLOPs/byte  tensors + workspace    error / allowed\n"
           "00_naive              12.3 ms     977 KiB        512         1.00 KiB + 0      not validated\n"
           "09_test/a_long_name   45.6 ms     264 KiB       1894         1.00 KiB + 0      not validated\n"
           "09_test/edges         78.9 ms           -          -         1.00 KiB + 0      not validated\n",
           "the table on the CPU device");
    Row wrong[] = {{.name = "09_test/wrong", .latency_ms = 45.6, .tensor_bytes = 1024, .gpu_bytes = 264 * 1024, .comparison_count = 1,
                    .comparisons = {{.ok = 0, .tensor = "O", .error = 2, .allowed = 1, .empty = 1}}}};
    job.rows = wrong;
    job.count = 1;
    prints(job,
           ON_CPU
           "variant             simulated bytes moved FLOPs/byte  tensors + workspace    error / allowed\n"
           "09_test/wrong         45.6 ms     264 KiB       1894         1.00 KiB + 0  2.0e+00 / 1.0e+00\n",
           "a wrong row is wrong, though its bound may be too wide to check anything");
    job.rows = rows;
    job.count = 3;
    job.run.stage = &decoding; /* in place of GB/s, too, and without a remark on the simulator's noise */
    job.end = 1;
    prints(job, "not validated\nnot validated\n", "no remark on the simulator's noise");
}

static void test_decoding(void) {
    Row rows[] = {{.name = "00_naive", .role = ROW_REFERENCE, TAKES(1e-3)}, /* 1,032,000 bytes in a us; of K and V the cache has half */
                  {.name = "09_test/fill", .role = ROW_PART, .passes = PREPARE, TAKES(1)},
                  {.name = "09_test/fill+v", .role = ROW_PART, .passes = WITH_PREPARE, TAKES(4e-4)}};
    Problem other = P;
    other.settings[0] = 7, other.settings[1] = 1, other.settings[2] = 2;
    Job job = REPORT(.stage = &decoding, .bandwidth = {.copy_gbps = 4000, .read_gbps = 5000});
    job.run.p = &other;
    job.rows = rows;
    job.count = 3;
    prints(job,
           HEADING(", pieces 7, round on, kind three")
           "memory   gives 5000 GB/s when it is read, 4000 GB/s when it is copied (bytes read and written)\n"
           "variant         latency     min   GB/s of read of copy  tensors + workspace vs naive    error / allowed\n"
           "00_naive        1.00 us 0.50 us   1032   20.6%   25.8%         1.00 KiB + 0        -      not validated\n"
           "09_test/fill    1.00 ms 0.50 us      -       -       -         1.00 KiB + 0        -                  -\n"
           "09_test/fill+v  0.40 us 0.50 us   1940   38.8%   48.5%         1.00 KiB + 0        -                  -\n",
           "the table of a stage that memory limits");
    static int lengths[] = {10};
    job = (Job)REPORT(.stage = &decoding);
    options.key_lengths = lengths;
    job.rows = rows;
    job.count = 1;
    prints(job,
           HEADING(", key lengths 10, pieces auto, round off,\n           kind one")
           "variant         latency     min   GB/s of read of copy  tensors + workspace vs naive    error / allowed\n"
           "00_naive        1.00 us 0.50 us    525       -       -         1.00 KiB + 0        -      not validated\n",
           "its bytes follow the key lengths; no share of what is not known");
}

static void test_backward(void) {
    Row rows[] = {
        {.name = "08_test/v", .role = ROW_FORWARD, TAKES(1), .comparison_count = 2},
        {.name = "09_test/v",
         .passes = BACKWARD_PASS,
         TAKES(1),
         .speed_ratio = 12.34,
         .comparison_count = 3,
         .spread_runs = 4,
         .spread = 0.031,
         .workspace = {{.purpose = "delta", .bytes = 1024}},
         .workspace_count = 1},
        {.name = "09_test/v", .role = ROW_PART, .passes = BOTH, TAKES(2)},
        {.name = "09_test/w", .passes = BACKWARD_PASS, TAKES(1), .comparison_count = 3, .spread_runs = 4},
        {.name = "00_naive", .role = ROW_REFERENCE, .passes = BACKWARD_PASS, .latency_ms = 1, .comparison_count = 3},
    };
    for (int i = 0; i < 5; i++)
        for (int c = 0; c < 3; c++)
            rows[i].comparisons[c] = comparison((const char *[]){"dQ", "dK", "dV"}[c], 1, c == 1 ? 0.2 : 0.1, 1);
    Job job = REPORT(.stage = &backward);
    job.rows = rows;
    job.count = 3;
    prints(
        job,
        DEVICE "problem  forward and backward, batch 1, heads 4/2, seqlen 500x1000, head_dim 64, fp16, full\n"
        "variant   direction  latency     min  TFLOP/s  of peak  tensors + workspace vs naive    error / allowed\n"
        "08_test/v   forward  1.00 ms 0.50 us     0.51        -         1.00 KiB + 0        -  1.0e-01 / 1.0e+00\n"
        "09_test/v  backward  1.00 ms 0.50 us     1.28        -         1.00 KiB + 0    12.3x  2.0e-01 / 1.0e+00\n"
        "09_test/v      both  2.00 ms 0.50 us     0.90        -         1.00 KiB + 0        -                  -\n",
        "the table of a backward stage: the worst of three gradients");
    job.count = 5;
    job.end = 1;
    prints(job,
           "\nworkspace  09_test/v: delta 1.00 KiB\n"
           "gradients  09_test/v: dQ 1.0e-01 / 1.0e+00, dK 2.0e-01 / 1.0e+00, dV 1.0e-01 / 1.0e+00; 4 runs differ by up to "
           "3.1e-02\n"
           "gradients  09_test/w: dQ 1.0e-01 / 1.0e+00, dK 2.0e-01 / 1.0e+00, dV 1.0e-01 / 1.0e+00; 4 runs are bit-equal\n"
           "gradients  00_naive: dQ 1.0e-01 / 1.0e+00, dK 2.0e-01 / 1.0e+00, dV 1.0e-01 / 1.0e+00\n",
           "gradients one by one, and the spread, where it was measured");
    rows[0].passes = rows[1].passes = FORWARD_PASS;
    rows[2].passes = PREPARE;
    rows[1].errors = (SampleErrors){.rms = 0.0123, .worst = 0.5};
    rows[1].workspace_count = 0;
    job = (Job)REPORT(.stage = &plain, .samples.count = 61);
    job.rows = rows, job.count = 3, job.end = 1;
    prints(job,
           "\naccuracy   09_test/v: RMSE 1.2e-02, worst error 5.0e-01, against fp64 of the inputs as given, on 61 rows\n",
           "errors against fp64, where inputs are prepared");
    rows[0].passes = PREPARE;
    rows[2].passes = FORWARD_PASS;
    prints(job,
           "\naccuracy   09_test/v: RMSE 1.2e-02, worst error 5.0e-01, against fp64 of the inputs as given, on 61 rows\n",
           "wherever that row is");
}

/* Of 500 x 1000 pairs a window of 1 keeps 500: the 512 MFLOPs of all of them become 512 kFLOPs. */
static void test_blocks(void) {
    static const Blocks blocks = {.text = "a:\"b\",c", .mask = {.window = 1}};
    Problem p = P;
    p.blocks = &blocks;
    Row row = {.name = "09_test/v", .latency_ms = 0.1, .min_ms = 0.1, .peak_tflops = 1, .tensor_bytes = 1024, .gpu_bytes = 1};
    Job job = REPORT(.stage = &with_blocks);
    job.run.p = &p, job.rows = &row, job.count = 1, job.end = 1;
    prints(job, ", full, spec a:\"b\",c, round off\n", "a setting that is a text");
    prints(job, "variant    latency     min  TFLOP/s if dense  of peak ", "a column for the dense equivalent");
    prints(job, "09_test/v   100 us  100 us   0.0051     5.12    0.51% ", "TFLOP/s of the pairs that are kept");
    options.format = FORMAT_JSON;
    prints(job, "\"settings\": \"spec=a:\\\"b\\\",c;round=off\", ", "JSON: the text");
    prints(job, "\"tflops\": 0.00512, \"dense_tflops\": 5.12, ", "JSON: the dense equivalent");
    p.blocks = NULL;
    prints(job, "\"settings\": \"spec=all;round=off\", ", "JSON: nothing given");
    options.format = FORMAT_TABLE;
}

static void test_machines(void) {
    Row row = {.name = "a,\"b\"\\c",
               .passes = WITH_PREPARE,
               .latency_ms = 0.5,
               .min_ms = INFINITY,
               .runs = 5,
               .iqr_ms = 0.005, /* 1 % */
               .peak_tflops = 2,
               .gpu_bytes = 512,
               .tensor_bytes = 3,
               .workspace_bytes = 5,
               .errors = {.rms = NAN, .worst = 0.25},
               .comparison_count = 1,
               .note = ""};
    row.comparisons[0] = comparison("O", 1, 0.125, 0.75);
    Job job = REPORT(.stage = &decoding);
    options.format = FORMAT_JSON, options.load = "x/y";
    job.rows = &row, job.count = 1;
    prints(
        job,
        "{\"stage\": \"09_test\", \"variant\": \"a,\\\"b\\\"\\\\c\", \"direction\": \"prepare and forward\", \"batch\": 1, "
        "\"heads\": 4, \"kv_heads\": 2, \"seqlen_q\": 500, \"seqlen_k\": 1000, \"head_dim\": 64, \"dtype\": \"fp16\", "
        "\"causal\": false, \"lengths\": null, \"scale\": 0.125, \"settings\": \"pieces=auto;round=off;kind=one\", "
        "\"inputs\": \"x/y\", \"seed\": null, \"l2\": \"cold\", \"iters\": null, \"runs\": 5, \"latency_ms\": 0.5, "
        "\"min_ms\": null, \"iqr_ms\": 0.005, \"noisy\": false, \"tflops\": 1.024, \"dense_tflops\": null, \"percent_of_peak\": 51.2, "
        "\"gbps\": 1.552, \"tensor_bytes\": 3, \"workspace_bytes\": 5, \"gpu_bytes\": 512, \"gpu_flops_per_byte\": 1000000, "
        "\"read_gbps\": null, \"copy_gbps\": null, "
        "\"rmse\": null, \"worst_fp64_error\": 0.25, \"worst_error\": 0.125, \"allowed_error\": 0.75, \"ok\": true, "
        "\"device\": \"A \\\"chip\\\", \\\\ fast\", \"clock_mhz\": 1980, \"cuda\": \"13.0\", \"commit\": \"",
        "JSON: quotes and backslashes; what is no number is null");
    row.passes = PREPARE, device.clock_mhz = 0, job.end = 1;
    prints(job, "\"gpu_flops_per_byte\": null, ", "JSON: a part without FLOPs");
    prints(job, "\"clock_mhz\": null, ", "JSON: a device without a clock");
    row.passes = WITH_PREPARE, device.clock_mhz = 1980;
    options.load = "ä\t\n\x1f\x7f/";
    job.end = 1; /* anywhere in what is printed */
    prints(job, "\"inputs\": \"ä\\u0009\\u000a\\u001f\x7f/\", ", "JSON: control characters; what is no ASCII as it is");
    options.format = FORMAT_CSV, options.load = "a,ä\xff";
    prints(job, ",\"a,ä\xff\",", "CSV: a path as it is");
    job.end = 0;
    job = (Job)REPORT(.stage = &decoding, .bandwidth = {.copy_gbps = 4000, .read_gbps = 5000});
    options.format = FORMAT_CSV, options.load = NULL;
    options.warm = options.outliers = 1;
    strcpy(row.note, "a note, with \"quotes\"");
    row.min_ms = 0.25;
    job.rows = &row, job.count = 1;
    job.run.options = &options;
    static int lengths[] = {33};
    options.key_lengths = lengths, options.seed = UINT64_MAX, options.iters = 7;
    prints(job,
           CSV_TITLES
           "09_test,\"a,\"\"b\"\"\\c\",prepare and forward,1,4,2,500,1000,64,fp16,false,33,0.125,"
           "pieces=auto;round=off;kind=one,outliers,18446744073709551615,warm,7,,,,,,,,,,3,5,,,5000,4000,,0.25,,,,"
           "\"A \"\"chip\"\", \\ fast\",1980,13.0,",
           "CSV: commas and quotes; a row with a note has no latency");
    options.load = "a\nb";
    *row.note = 0;
    job.end = 1;
    prints(job, ",\"a\nb\",,warm,7,5,0.5,0.25,0.005,false,", "CSV: a line break stands in quotes");

    /* another stage, without settings: the same names in the same order */
    job = (Job)REPORT(.stage = &plain);
    job.rows = &row, job.count = 1;
    options.load = NULL, options.key_lengths = NULL;
    row.iqr_ms = 0.006;
    prints(job,
           CSV_TITLES
           "09_test,\"a,\"\"b\"\"\\c\",prepare and forward,1,4,2,500,1000,64,fp16,false,,0.125,,outliers,"
           "18446744073709551615,warm,7,5,0.5,0.25,0.006,true,1.024,,51.2,",
           "CSV: the fields of a stage without options of its own; over 1% is noisy");
    row.runs = 3;
    job.end = 1;
    prints(job, ",warm,7,3,0.5,0.25,,,1.024,", "CSV: three runs have no quartiles");
    options.warm = options.outliers = 0;
}

/* What is wrong comes before what could not be checked. */
static void test_note(void) {
    Row row = {.latency_ms = 1, .comparison_count = 2};
    row.comparisons[0] = comparison("O", 1, 0.1, 1);
    row.comparisons[1] = comparison("LSE", 1, 0.1, 1);
    row.comparisons[1].empty = 1;
    ok(strncmp(row_note(&row), "not checked", 11) == 0, "a comparison that says nothing");
    ok(!row_unchecked(&row) && row_worst(&row) == &row.comparisons[0], "LSE: O was checked, and is shown");
    row.comparisons[0].empty = 1, row.comparisons[1].empty = 0;
    ok(!row_unchecked(&row) && row_worst(&row) == &row.comparisons[1], "O: LSE was, and is shown");
    row.comparisons[1].empty = 1, row.comparisons[2] = comparison("prepared Q", 1, 0.1, 1), row.comparison_count = 3;
    ok(row_unchecked(&row), "both: nothing of what the kernel wrote was, whatever prepared inputs say");
    row.comparison_count = 2, row.comparisons[1].empty = 0;
    row.comparisons[0].ok = 0;
    ok(!*row_note(&row), "beside one that fails");
    strcpy(row.cause, "a reason");
    ok(!strcmp(row_note(&row), "a reason"), "which may have a reason");

    row = (Row){.latency_ms = 1, .comparison_count = 3, .passes = BACKWARD_PASS};
    row.comparisons[0] = comparison("dQ", 1, 0.9, 1), row.comparisons[1] = comparison("dK", 1, 0.1, 1);
    row.comparisons[2] = comparison("dV", 1, 0.2, 1);
    ok(row_worst(&row) == &row.comparisons[0], "the worst gradient is shown,");
    row.comparisons[0].empty = 1;
    ok(row_worst(&row) == &row.comparisons[2] && !row_unchecked(&row), "of those that are checked,");
    row.comparisons[0].ok = 0, row.comparisons[0].severity = 1.1;
    ok(row_worst(&row) == &row.comparisons[0], "unless one is wrong;");
    row.comparisons[0] = comparison("dQ", 1, 0.9, 1);
    for (int i = 0; i < 3; i++)
        row.comparisons[i].empty = 1;
    ok(row_unchecked(&row), "none is checked if all bounds are empty");
}

int main(void) {
    test_note();
    test_table();
    options = (Options){0};
    test_narrow();
    test_cpu();
    options = (Options){0};
    test_decoding();
    options = (Options){0};
    test_backward();
    options = (Options){0};
    test_blocks();
    test_machines();
    return tap_done();
}
