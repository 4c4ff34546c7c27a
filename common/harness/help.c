/* help.c - see help.h. */
#include "help.h"

#include "../host/text.h"
#include "problems.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

const char *taken_by(const Setting *setting) {
    static char text[160];
    const char *choices = setting->choices ? setting->choices : "";
    snprintf(text, sizeof text, "%s", choices);
    if (setting->max)
        append(text, sizeof text, "%sa whole number from 1 to %d", *text ? " or " : "", setting->max);
    return text;
}

void help_begins(const Stage *stage) {
    print_hanging(4, "%s - %s", stage->name, stage->idea);
    printf("\nusage: %s [options]\n\n", stage->name);
    print_hanging(
        0, "Computes attention, S = scale Q K^T and O = softmax(S) V, with each variant, compares the result with 00_naive, "
           "checks 00_naive against double precision, and prints a table with the time of each. The exit code is 0 if all agree, 1 "
           "if one does not, and 2 if something cannot run here or cannot be checked. The shape, dtype, mask, and most options "
           "of a stage take several values, as in --seqlen 512,1024. Every combination runs, and the option listed last below "
           "changes fastest.");
    printf("\n");
    for (int i = 0; i < 2; i++) {
        Problem p = default_shape(stage, i);
        print_hanging(4, "Without options%s: batch %d, heads %d/%d, seqlen %dx%d, head dim %d",
                      i ? ", on the CPU device" : "", p.batch, p.heads, p.kv_heads, p.seqlen_q,
                      p.seqlen_k ? p.seqlen_k : p.seqlen_q, p.head_dim);
    }
}

void help_option(const Setting *s, const char *value) {
    int has_names = s->choices && isalpha((unsigned char)*s->choices);
    if (!s->name)
        printf("\n%s\n", s->help);
    else
        print_hanging(20, "  --%s %-*s%s%s%s", s->name, 15 - (int)strlen(s->name), value ? value : "", s->help,
                      has_names ? ": " : "", has_names ? taken_by(s) : "");
}

void help_ends(const Stage *stage) {
    printf("\n");
    print_hanging(0,
                  "Most variants support head dims 64 and 128. One that does not support a head dim or dtype says so in its row.");
    print_hanging(
        0,
        "TFLOP/s are 10^12 multiplications and additions per second, counting 4 D for each pair of a query and a key that the "
        "mask keeps. With a causal mask and Sq = Sk, but no --lengths%s%s, half of all pairs are counted. GB/s are 10^9 bytes "
        "per second, counting Q and the existing keys of K and V as read once, and O and LSE as written once.",
        stage->cuts ? " or " : "", stage->cuts ? stage->cuts : "");
    if (stage->kind == BACKWARD) {
        print_hanging(
            0, "The forward pass runs first. The backward pass is counted as 2.5 times its FLOPs, and both together as 3.5 "
               "times. Its bytes are Q, K, V, O, dO, and LSE read once, and dQ, dK, and dV written once. --save also writes "
               "dq.npy, dk.npy, and dv.npy.");
        print_hanging(0,
                      "--load also reads do.npy, and --save-inputs writes it: dO, the gradient of the loss with respect to O.");
    }
    printf("\nvariants\n");
    for (const Variant *v = stage->variants; v->name; v++)
        print_hanging(17, "  %-14s %s", v->name, v->idea);
    print_hanging(17, "  %-14s %s", NAIVE, "the definition; unless --no-validate, it runs first and is the reference");
}
