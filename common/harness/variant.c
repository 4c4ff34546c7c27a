/* variant.c - see variant.h. */
#include "variant.h"

#include "../device/device.h"
#include "../host/text.h"

#include <stdio.h>
#include <string.h>

const Variant *reference_of(const Stage *stage) { return stage->reference ? stage->reference : &naive_variant; }

const Variant *named_variant(const Options *o) {
    for (const Variant *v = o->stage->variants; o->variant && v->name; v++)
        if (strcmp(v->name, o->variant) == 0)
            return v;
    return o->variant ? reference_of(o->stage) : NULL;
}

const char *variant_refuses(const Variant *v, const Problem *p) {
    static char reason[128];
    int capability = device_properties()->capability;
    char takes[64] = "";

    if (!(v->dtypes & 1u << p->dtype)) {
        for (int dtype = 0; v->dtypes >> dtype; dtype++)
            if (v->dtypes & 1u << dtype)
                append(takes, sizeof takes, "%s%s", *takes ? ", " : "", dtype_name((Dtype)dtype));
        snprintf(reason, sizeof reason, "takes %s, not %s", takes, dtype_name(p->dtype));
        return reason;
    }
    int listed = 0;
    for (int i = 0; v->head_dims[i]; i++) {
        listed |= v->head_dims[i] == p->head_dim;
        append(takes, sizeof takes, "%s%d", *takes ? ", " : "", v->head_dims[i]);
    }
    if (*takes ? !listed : p->head_dim % 8 || p->head_dim > MAX_HEAD_DIM) {
        snprintf(reason, sizeof reason, "takes head dim %s, not %d", *takes ? takes : "8, 16, ..., 256", p->head_dim);
        return reason;
    }
    if (v->uses & TENSOR_CORES && p->dtype == DTYPE_BF16 && capability < 80) {
        snprintf(reason, sizeof reason, "needs sm_80 for bf16, but this program is limited to sm_%d", capability);
        return reason;
    }
    if (v->uses & WGMMA && !device_properties()->has_hopper)
        return "needs a Hopper GPU (sm_90) and code for it (ARCH=90a): other chips have no wgmma";
    if (v->max_seqlen_q && p->seqlen_q > v->max_seqlen_q) {
        snprintf(reason, sizeof reason, "takes --seqlen from 1 to %d, not %d", v->max_seqlen_q, p->seqlen_q);
        return reason;
    }
    if (v->devices && v->devices(p) > device_peers()) {
        snprintf(reason, sizeof reason, "needs %d devices, but there %s only %d", v->devices(p), device_peers() == 1 ? "is" : "are",
                 device_peers());
        return reason;
    }
    return v->refuses ? v->refuses(p) : NULL;
}

int variant_prepares(const Variant *v, const Problem *p) {
    return v->preparation && (!v->preparation->wanted || v->preparation->wanted(p));
}

int variant_rounds(const Variant *v, const Problem *p) {
    return variant_prepares(v, p) && v->preparation->values && (!v->preparation->changes || v->preparation->changes(p));
}

const Variant *forward_of(const Stage *stage, const Problem *p) {
    return stage->forward_otherwise && variant_refuses(stage->forward, p) ? stage->forward_otherwise : stage->forward;
}
