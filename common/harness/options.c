/* options.c - see options.h. */
#define _GNU_SOURCE /* getopt_long */
#include "options.h"

#include "../host/allocation.h"
#include "../host/errors.h"
#include "../trace/roofline.h"

#include <ctype.h>
#include <errno.h>
#include <getopt.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_SCALE 1e6
#define MAX_ITERS 1000000

/* ---- one value ---- */

/* A whole number in plain digits, nothing before or after it. Returns 0 if `text` is not one or passes `max`. */
static int parse_whole(const char *text, uint64_t max, uint64_t *value) {
    char *end;
    errno = 0;
    *value = strtoull(text, &end, 10);
    return isdigit((unsigned char)*text) && *end == '\0' && errno == 0 && *value <= max;
}

static int int_option(const char *option, const char *text, int max) {
    uint64_t value;
    if (!parse_whole(text, (uint64_t)max, &value) || value == 0)
        cannot_run("--%s %s: choose a whole number from 1 to %d", option, text, max);
    return (int)value;
}

static float scale_option(const char *text) {
    char *end;
    float value = strtof(text, &end);
    int starts_well = isdigit((unsigned char)*text) || *text == '.';
    if (!starts_well || *end != '\0' || !(value > 0 && value <= MAX_SCALE))
        cannot_run("--scale %s: choose a number above 0, up to 1e6", text);
    return value;
}

static Dtype dtype_option(const char *text) {
    for (int dtype = 0; dtype < DTYPE_COUNT; dtype++)
        if (strcmp(text, dtype_name((Dtype)dtype)) == 0)
            return (Dtype)dtype;
    cannot_run("--dtype %s: choose fp16, bf16 or fp32", text);
}

/* "a,b,c": fills in key_lengths and key_length_count. */
static void lengths_option(Options *o, const char *text) {
    free(o->key_lengths);
    o->key_lengths = host_alloc(strlen(text) / 2 + 1, sizeof *o->key_lengths);
    o->key_length_count = 0;
    char *list = host_alloc(strlen(text) + 1, 1);
    strcpy(list, text);
    for (char *item = list, *next; item; item = next) {
        next = strchr(item, ',');
        if (next)
            *next++ = '\0';
        uint64_t length;
        if (!parse_whole(item, MAX_SEQLEN, &length))
            cannot_run("--lengths %s: choose key lengths from 0 to --seqlen-k, like 17,0,256", text);
        o->key_lengths[o->key_length_count++] = (int)length;
    }
    free(list);
}

/* "mma", "01_tiled/mma", or "00_naive". */
static const char *variant_option(const Stage *stage, const char *text) {
    size_t prefix = strlen(stage->name);
    const char *name = strncmp(text, stage->name, prefix) == 0 && text[prefix] == '/' ? text + prefix + 1 : text;
    char choices[256] = "";
    for (const Variant *v = stage->variants; v < stage->variants + MAX_VARIANTS && v->name; v++) {
        if (strcmp(name, v->name) == 0)
            return v->name;
        size_t used = strlen(choices);
        snprintf(choices + used, sizeof choices - used, "%s%s", used ? ", " : "", v->name);
    }
    if (strcmp(text, NAIVE) == 0)
        return NAIVE;
    cannot_run("--variant %s: choose %s%s" NAIVE, text, choices, *choices ? " or " : "");
}

/* ---- the command line ---- */

/* clang-format off: two tables that read better packed */
enum {
    BATCH = 1,
    HEADS,
    KV_HEADS,
    SEQLEN,
    SEQLEN_K,
    HEAD_DIM, /* the shape, which --load replaces */
    DTYPE,
    CAUSAL,
    LENGTHS,
    SCALE,
    VARIANT,
    ITERS,
    SEED,
    INPUTS,
    WARM,
    LOAD,
    SAVE,
    CSV,
    JSON,
    NO_VALIDATE,
    TRACE_RUN,
    ROOFLINE,
    HELP,
    SETTING, /* the stage's first own option; the others follow */
    END = SETTING + MAX_SETTINGS
};

static struct option OPTIONS[END] = {
    {"batch", required_argument, NULL, BATCH},
    {"heads", required_argument, NULL, HEADS},
    {"kv-heads", required_argument, NULL, KV_HEADS},
    {"seqlen", required_argument, NULL, SEQLEN},
    {"seqlen-k", required_argument, NULL, SEQLEN_K},
    {"head-dim", required_argument, NULL, HEAD_DIM},
    {"dtype", required_argument, NULL, DTYPE},
    {"causal", no_argument, NULL, CAUSAL},
    {"lengths", required_argument, NULL, LENGTHS},
    {"scale", required_argument, NULL, SCALE},
    {"variant", required_argument, NULL, VARIANT},
    {"iters", required_argument, NULL, ITERS},
    {"seed", required_argument, NULL, SEED},
    {"inputs", required_argument, NULL, INPUTS},
    {"warm", no_argument, NULL, WARM},
    {"load", required_argument, NULL, LOAD},
    {"save", required_argument, NULL, SAVE},
    {"csv", no_argument, NULL, CSV},
    {"json", no_argument, NULL, JSON},
    {"trace", no_argument, NULL, TRACE_RUN},
    {"roofline", required_argument, NULL, ROOFLINE},
    {"no-validate", no_argument, NULL, NO_VALIDATE},
    {"help", no_argument, NULL, HELP},
}; /* options_parse adds the stage's own */
/* clang-format on */

static int is_flag(const Setting *setting) { return !setting->choices && !setting->max; }

static void add_settings(const Stage *stage) {
    int end = SETTING - 1; /* the first place behind those that every stage has */
    for (int i = 0; i < MAX_SETTINGS && stage->settings[i].name; i++)
        OPTIONS[end++] = (struct option){stage->settings[i].name,
                                         is_flag(&stage->settings[i]) ? no_argument : required_argument, NULL, SETTING + i};
}

/* Which of the "a|b|c" in `choices` the text is, from 0; -1: none. */
static int find_choice(const char *choices, const char *text) {
    for (int number = 0; choices; number++) {
        size_t length = strcspn(choices, "|");
        if (strlen(text) == length && strncmp(choices, text, length) == 0)
            return number;
        choices = choices[length] ? choices + length + 1 : NULL;
    }
    return -1;
}

/* "tensor, block": what a message offers. */
static void list_choices(const Setting *setting, char *list, size_t size) {
    size_t used = 0;
    for (const char *c = setting->choices ? setting->choices : ""; *c && used + 4 < size; c++)
        used += (size_t)snprintf(list + used, size - used, *c == '|' ? ", " : "%c", *c);
    if (setting->max)
        snprintf(list + used, size - used, "%sa whole number from 1 to %d", used ? " or " : "", setting->max);
}

static int setting_option(const Setting *setting, const char *text) {
    if (is_flag(setting))
        return 1;
    uint64_t value;
    int choice = find_choice(setting->choices, text);
    if (choice >= 0)
        return choice;
    if (setting->max && parse_whole(text, (uint64_t)setting->max, &value) && value > 0)
        return (int)value;
    char list[160] = "";
    list_choices(setting, list, sizeof list);
    cannot_run("--%s %s: choose %s", setting->name, text, list);
}

static const char *option_name(int code) {
    for (const struct option *option = OPTIONS; option->name; option++)
        if (option->val == code)
            return option->name;
    return "?";
}

/* The shape where nothing is given. seqlen_k 0: as seqlen_q. */
static Problem default_shape(const Stage *stage, int is_cpu) {
    Problem p = stage->defaults[is_cpu];
    if (!p.batch)
        p = is_cpu ? (Problem){.batch = 1, .heads = 2, .kv_heads = 2, .seqlen_q = 256, .head_dim = 64}
                   : (Problem){.batch = 4, .heads = 16, .kv_heads = 16, .seqlen_q = 4096, .head_dim = 128};
    return p;
}

static void help_int(const char *option, int gpu, int cpu) { printf("%-71s%d, %d\n", option, gpu, cpu); }

static void print_help(const Stage *stage) {
    Problem gpu = default_shape(stage, 0), cpu = default_shape(stage, 1);
    printf("%s - %s\n\n"
           "usage: %s [options]\n\n"
           "Computes attention with each variant, compares the result with 00_naive (and that with a double precision\n"
           "reference), times it, and prints a table. Exit code: 0 all agree, 1 one does not, 2 cannot run here, or cannot\n"
           "be checked.\n\n",
           stage->name, stage->idea, stage->name);
    printf("%-71sGPU, CPU if not given\n", "the problem");
    help_int("  --batch N      batch entries", gpu.batch, cpu.batch);
    help_int("  --heads N      query heads", gpu.heads, cpu.heads);
    if (gpu.kv_heads == gpu.heads)
        printf("%-71sas --heads\n", "  --kv-heads N   key/value heads; must divide --heads");
    else
        help_int("  --kv-heads N   key/value heads; must divide --heads", gpu.kv_heads, cpu.kv_heads);
    help_int(gpu.seqlen_k ? "  --seqlen N     queries a head"
                          : "  --seqlen N     queries a head, and keys unless --seqlen-k",
             gpu.seqlen_q, cpu.seqlen_q);
    if (gpu.seqlen_k)
        help_int("  --seqlen-k N   keys a head", gpu.seqlen_k, cpu.seqlen_k);
    else
        printf("%-71sas --seqlen\n", "  --seqlen-k N   keys a head");
    help_int("  --head-dim N   a multiple of 8 up to 256", gpu.head_dim, cpu.head_dim);
    printf("  --dtype T      fp16, bf16 or fp32                                    fp16\n"
           "  --causal       a query sees keys up to its own place, the last query sees all of them\n"
           "  --lengths L    keys that exist in each batch entry: 17,0,256         all\n"
           "  --scale X      multiplies Q K^T                                      1/sqrt(head dim)\n"
           "  --seed N       of the random inputs, which are N(0,1)                0\n"
           "  --inputs I     normal, or outliers: N(0,100) added to one in 1000    normal\n"
           "  --load DIR     q.npy, k.npy, v.npy instead: [batch, heads, seqlen, head_dim], fp16, fp32 or fp64\n");
    if (stage->forward)
        printf("                 and do.npy, the gradient of the loss with respect to O, in the shape of q.npy\n");
    printf("the run\n"
           "  --variant V    one of those below                                    all\n"
           "  --iters N      timed runs, cold L2; latency is their median          about 100 ms, 5 to 100 runs\n"
           "  --warm         L2 keeps what the run before left there               cold\n"
           "  --no-validate  time only\n"
           "  --save DIR     o.npy and lse.npy of the one --variant\n"
           "  --csv, --json  the rows for machines, JSON one object a line\n"
           "  --trace        instead: memory traffic, bank conflicts and races (needs the build of make trace-STAGE)\n"
           "  --roofline C   of this chip, with --trace: " CHIP_NAMES "; default h200\n"
           "  --help\n\n"
           "TFLOP/s counts 4 * batch * heads * seqlen * seqlen_k * head_dim, half of that when causal, whatever --lengths\n"
           "cuts off. GB/s %s read once, O and LSE written once.\n",
           stage->bytes ? "counts K and V as far as keys exist and Q" : "(csv and json) counts Q, K and V");
    if (stage->forward)
        printf(
            "The forward pass is %s. The backward pass counts 2.5 times its FLOPs, both together 3.5 times; bytes: Q, K,\n"
            "V, O, dO and LSE read once, dQ, dK and dV written once. --save writes dq.npy, dk.npy and dv.npy.\n",
            stage->forward->name);
    for (int i = 0; i < MAX_SETTINGS && stage->settings[i].name; i++) {
        const Setting *s = &stage->settings[i];
        char values[160] = "", option[200];
        list_choices(s, values, sizeof values);
        snprintf(option, sizeof option, "--%s%s%s", s->name, is_flag(s) ? "" : ": ", values);
        printf("%s  %s\n                 %s\n", i ? "" : "\nthis stage's own\n", option, s->help);
    }
    printf("\nvariants\n");
    for (const Variant *v = stage->variants; v < stage->variants + MAX_VARIANTS && v->name; v++)
        printf("  %-14s %s\n", v->name, v->idea);
    printf("  %-14s %s\n", NAIVE, "the definition; runs first, as the reference, unless --no-validate");
}

Options options_parse(const Stage *stage, int argc, char **argv) {
    Options o = {.validate = 1, .roofline = "h200"};
    Problem *p = &o.problem;
    flush_output();
    add_settings(stage);
    optind = 1;
    opterr = 0; /* the messages are ours */
    for (int code; (code = getopt_long(argc, argv, ":", OPTIONS, NULL)) != -1;) {
        const char *name = option_name(code);
        if (code <= HEAD_DIM)
            o.shape_given = name;
        if (code >= SETTING && code < END) {
            p->settings[code - SETTING] = setting_option(&stage->settings[code - SETTING], optarg);
            continue;
        }
        switch (code) {
        case BATCH: p->batch = int_option(name, optarg, MAX_BATCH); break;
        case HEADS: p->heads = int_option(name, optarg, MAX_HEADS); break;
        case KV_HEADS: p->kv_heads = int_option(name, optarg, MAX_HEADS); break;
        case SEQLEN: p->seqlen_q = int_option(name, optarg, MAX_SEQLEN); break;
        case SEQLEN_K: p->seqlen_k = int_option(name, optarg, MAX_SEQLEN); break;
        case HEAD_DIM: p->head_dim = int_option(name, optarg, MAX_HEAD_DIM); break;
        case DTYPE: p->dtype = dtype_option(optarg); break;
        case CAUSAL: p->causal = 1; break;
        case LENGTHS: lengths_option(&o, optarg); break;
        case SCALE: p->scale = scale_option(optarg); break;
        case VARIANT: o.variant = variant_option(stage, optarg); break;
        case ITERS: o.iters = int_option(name, optarg, MAX_ITERS); break;
        case SEED:
            if (!parse_whole(optarg, UINT64_MAX, &o.seed))
                cannot_run("--seed %s: choose a whole number from 0 to 2^64 - 1", optarg);
            break;
        case INPUTS:
            o.outliers = find_choice("normal|outliers", optarg);
            if (o.outliers < 0)
                cannot_run("--inputs %s: choose normal or outliers", optarg);
            break;
        case WARM: o.warm = 1; break;
        case LOAD:
        case SAVE:
            if (!*optarg)
                cannot_run("--%s: choose a folder", name);
            *(code == LOAD ? &o.load : &o.save) = optarg;
            break;
        case CSV:
        case JSON:
            if (o.format != FORMAT_TABLE && o.format != (code == CSV ? FORMAT_CSV : FORMAT_JSON))
                cannot_run("--csv and --json: choose one");
            o.format = code == CSV ? FORMAT_CSV : FORMAT_JSON;
            break;
        case TRACE_RUN:
#ifndef TRACE
            cannot_run("--trace: this program is not built for it; make trace-%s builds and runs one", stage->name);
#endif
            o.trace = 1;
            break;
        case ROOFLINE:
            if (!find_chip(optarg))
                cannot_run("--roofline %s: choose " CHIP_NAMES, optarg);
            o.roofline = optarg;
            break;
        case NO_VALIDATE: o.validate = 0; break;
        case HELP:
            print_help(stage);
            flush_output();
            exit(0);
        case ':': cannot_run("--%s: its value is missing", option_name(optopt));
        default: /* '?': optopt is the letter of an unknown short option, the code of a flag that was given a value, or 0 */
            if (optopt >= END)
                cannot_run("-%c: no such option, --help lists them", optopt);
            cannot_run("%s: %s", argv[optind - 1], optopt ? "takes no value" : "no such option, --help lists them");
        }
    }
    if (optind < argc)
        cannot_run("%s: not an option, --help lists them", argv[optind]);
    if (o.load && o.shape_given)
        cannot_run("--%s and --load: choose one, the shape comes from the files", o.shape_given);

    if (o.trace && o.format == FORMAT_CSV)
        cannot_run("--trace and --csv: choose --json, or neither for a table");
    if (!stage->variants[0].name)
        o.variant = NAIVE; /* 00_naive: there is only one */
    if (o.save && !o.variant)
        cannot_run("--save %s: name the one to save with --variant", o.save);
    return o;
}

/* ---- what the options say together ---- */

void options_complete(Options *o, const Stage *stage, int is_cpu) {
    Problem *p = &o->problem;
    Problem other = default_shape(stage, is_cpu);
    p->batch = p->batch ? p->batch : other.batch;
    p->kv_heads = p->kv_heads ? p->kv_heads : p->heads ? p->heads : other.kv_heads;
    p->heads = p->heads ? p->heads : other.heads;
    p->seqlen_k = p->seqlen_k ? p->seqlen_k : other.seqlen_k ? other.seqlen_k : p->seqlen_q ? p->seqlen_q : other.seqlen_q;
    p->seqlen_q = p->seqlen_q ? p->seqlen_q : other.seqlen_q;
    p->head_dim = p->head_dim ? p->head_dim : other.head_dim;
    p->scale = p->scale > 0 ? p->scale : 1 / sqrtf((float)p->head_dim);

    const char *source = o->load ? "--load" : "--head-dim";
    if (p->head_dim % 8 || p->head_dim > MAX_HEAD_DIM)
        cannot_run("%s: head dim %d, choose a multiple of 8 up to %d", source, p->head_dim, MAX_HEAD_DIM);
    if (p->heads % p->kv_heads)
        cannot_run("%s %d: choose a divisor of %d, the number of query heads",
                   o->load ? "--load: key/value heads" : "--kv-heads", p->kv_heads, p->heads);

    /* The kernels have one (batch, head) a block of their grid's y or z dimension. */
    if ((long)p->batch * p->heads > 65535)
        cannot_run("--batch %d times --heads %d: choose a product up to 65535", p->batch, p->heads);

    /* Q, K, V and O end below 2^55 elements by now. 2^58 of S keep every size in bytes inside 64 bits. */
    if ((double)p->batch * p->heads * p->seqlen_q * p->seqlen_k > 0x1p58)
        cannot_run("--batch %d, --heads %d, --seqlen %d, --seqlen-k %d: too large together, sizes would pass 64 bits",
                   p->batch, p->heads, p->seqlen_q, p->seqlen_k);

    if (!o->key_lengths)
        return;
    if (o->key_length_count != 1 && o->key_length_count != p->batch)
        cannot_run("--lengths: %d given, choose one for all batch entries or one for each of the %d", o->key_length_count,
                   p->batch);
    int *lengths = host_alloc((size_t)p->batch, sizeof *lengths);
    for (int b = 0; b < p->batch; b++) {
        lengths[b] = o->key_lengths[o->key_length_count == 1 ? 0 : b];
        if (lengths[b] > p->seqlen_k)
            cannot_run("--lengths: %d, choose key lengths from 0 to %d, the number of keys", lengths[b], p->seqlen_k);
    }
    free(o->key_lengths);
    o->key_lengths = lengths;
}
