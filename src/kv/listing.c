/*
 * listing.c - the storage types as the public header shows them: names, descriptions and costs. How
 * they are coded is the codecs' business.
 */
#include "kv/geometry.h"
#include "kv/type.h"
#include "pith/policy.h"

static const char turboquant[] =
    "Zandieh et al., \"TurboQuant: Online Vector Quantization with Near-optimal Distortion Rate\", "
    "ICLR 2026, arXiv 2504.19874; the format is TurboQuant+'s";
static const char ggml[] = "ggml";

static const struct {
    const char *summary;
    const char *citation;
} texts[KV_N_TYPE] = {
    [KV_TYPE_F32] = {"as the model made it", ""},
    [KV_TYPE_F16] = {"half precision (the default)", ""},
    [KV_TYPE_Q8_0] = {"8 bits and a scale for 32 values", ggml},
    [KV_TYPE_Q4_0] = {"4 bits and a scale for 32 values", ggml},
    [KV_TYPE_TURBO4] = {"rotated groups of up to 128 values, 16 centroids", turboquant},
    [KV_TYPE_TURBO3] = {"rotated groups of up to 128 values, 8 centroids", turboquant},
    [KV_TYPE_TURBO2] = {"rotated groups of up to 128 values, 4 centroids", turboquant},
    [KV_TYPE_BF16] = {"8 bits of every number, and prompts in pairs of products", ""},
};

pith_status pith_store_type(int32_t i, pith_store_info *out)
{
    if (i < 0 || i >= KV_N_TYPE)
        return PITH_NOT_FOUND;
    enum kv_type type = (enum kv_type)i;
    *out = (pith_store_info){
        .name = kv_type_name(type),
        .summary = texts[type].summary,
        .citation = texts[type].citation,
        .rotated = kv_type_is_rotated(type),
    };
    return PITH_OK;
}

double pith_store_bits(int32_t i, int32_t head_dim)
{
    if (i < 0 || i >= KV_N_TYPE || head_dim < 1 || kv_type_group((enum kv_type)i, head_dim) == 0)
        return 0.0;
    return kv_type_bits((enum kv_type)i, head_dim);
}

pith_status pith_store_check(const char *type_k, const char *type_v, pith_error *err)
{
    struct kv_geometry unused = {0};
    struct kv_type_choice k;
    return kv_geometry_read_types(&unused, type_k, type_v, &k, err);
}
