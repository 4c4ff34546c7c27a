/* heading.c - see heading.h. */
#include "heading.h"

#include "../host/text.h"
#include "row.h"

void print_heading(const Run *run) {
    const Problem *p = run->p;
    print_text("%sdevice   %s, %s\n", run->options->selected ? "\n" : "", run->device->name, run->device->platform);
    print_text("problem  %s, batch %d, heads %d/%d, seqlen %dx%d, head_dim %d, %s, %s",
               run->stage->kind == BACKWARD ? "forward and backward" : "forward", p->batch, p->heads, p->kv_heads,
               p->seqlen_q, p->seqlen_k, p->head_dim, dtype_name(p->dtype), p->causal ? "causal" : "full");
    if (p->scale != 1 / sqrtf((float)p->head_dim))
        print_text(", scale %g", p->scale);
    if (run->options->key_lengths) {
        print_text(", key lengths");
        for (int b = 0; b < p->batch && b < 8; b++)
            print_text("%s%d", b ? "," : " ", run->options->key_lengths[b]);
        print_text("%s", p->batch > 8 ? ",..." : "");
    }
    for (int i = 0; run->stage->settings[i].name; i++)
        print_text(", %s %s", run->stage->settings[i].name, setting_text(run, i));
    if (run->options->load)
        print_text(", from %s", run->options->load);
    else if (run->options->outliers)
        print_text(", inputs with outliers");
    if (run->options->warm)
        print_text(", warm L2");
    print_text("\n");
    if (run->bandwidth.read_gbps > 0)
        print_text("memory   gives %.0f GB/s when it is read, %.0f GB/s when it is copied (bytes read and written)\n",
                   run->bandwidth.read_gbps, run->bandwidth.copy_gbps);
    if (run->device->is_cpu)
        print_text("times    are the simulator's: they say nothing about a GPU, not even which variant is faster\n");
}
