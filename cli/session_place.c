/*
 * session_place.c - from the options of devices to an engine's: where layers are, the words for it,
 * and the memory that is there.
 */
#include <stdio.h>
#include <string.h>

#include "session.h"

/* llama.cpp's "none" is the processor. Where there is no GPU the first one is not asked for. */
const char *session_device(const struct model_options *m)
{
    static char main_gpu[32];
    int64_t n = 0;
    if (m->device != NULL && strcmp(m->device, "none") == 0)
        return "cpu";
    if (m->main_gpu == NULL || (m->device != NULL && strcmp(m->device, "auto") != 0))
        return m->device;
    if (!options_parse_long(m->main_gpu, &n) || n < 0)
        cli_fail_usage("--main-gpu: \"%s\" is not the number of a GPU", m->main_gpu);
    if (n == 0 && pith_device_count() == 1)
        return m->device;
    snprintf(main_gpu, sizeof(main_gpu), "cuda:%lld", (long long)n);
    return main_gpu;
}

/* As the engine takes it. llama.cpp's numbers below 0 are auto and all. */
static int32_t gpu_layers(const struct model_options *m)
{
    int64_t n;
    const char *text = m->gpu_layers;
    if (text == NULL || strcmp(text, "auto") == 0 || strcmp(text, "-1") == 0)
        return 0;
    if (strcmp(text, "all") == 0 || strcmp(text, "-2") == 0)
        return PITH_GPU_LAYERS_ALL;
    if (!options_parse_long(text, &n) || n < 0 || n > INT32_MAX)
        cli_fail_usage("--n-gpu-layers: \"%s\" is not a number of layers, all or auto", text);
    return n > 0 ? (int32_t)n : PITH_GPU_LAYERS_NONE;
}

void session_place(const struct model_options *m, pith_engine_params *out)
{
    out->device = session_device(m);
    out->n_gpu_layers = gpu_layers(m);
    out->tensor_split = m->tensor_split;
}

bool session_uses_gpu(const struct model_options *m)
{
    pith_device_info info;
    const char *names = session_device(m);
    if (gpu_layers(m) == PITH_GPU_LAYERS_NONE)
        return false;
    if (names != NULL && strchr(names, ',') != NULL)
        return true;
    return pith_device_find(names, &info, NULL) == PITH_OK && strcmp(info.name, "cpu") != 0;
}

void session_check_device(const struct model_options *m)
{
    pith_error err;
    const char *names = session_device(m);
    gpu_layers(m);
    if (names != NULL && strchr(names, ',') != NULL)
        return;
    if (pith_device_find(names, NULL, &err) != PITH_OK) /* "device: ..." */
        cli_fail_usage("--%s", err.message);
}

/* Adds a stage's words; false: it is the processor's. */
static bool add_stage(const pith_stage_info *stage, char *buf, size_t cap)
{
    char layers[64] = "", bytes[32];
    size_t len = strlen(buf);
    if (stage->n_layer > 0)
        snprintf(layers, sizeof(layers), " layers %d-%d%s", stage->first_layer,
                 stage->first_layer + stage->n_layer - 1, stage->output ? " and" : "");
    snprintf(buf + len, cap - len, "%s%s%s%s (%s)", len > 0 ? ", " : "", stage->device, layers,
             stage->output ? " the output" : "", cli_bytes(stage->weight_bytes, bytes));
    return strcmp(stage->device, "cpu") != 0;
}

bool session_stages(const struct session *s, char *buf, size_t cap)
{
    pith_stage_info stage;
    bool elsewhere = false;
    buf[0] = '\0';
    for (int32_t i = 0; pith_engine_stage(s->engine, i, &stage) == PITH_OK; i++)
        elsewhere = add_stage(&stage, buf, cap) || elsewhere;
    return elsewhere;
}

bool session_stages_of(const pith_model *model, const struct model_options *m, char *buf,
                       size_t cap)
{
    pith_stage_info stage;
    pith_engine_params p;
    bool elsewhere = false;
    buf[0] = '\0';
    pith_engine_params_default(&p);
    session_place(m, &p);
    for (int32_t i = 0; pith_stage_plan(model, &p, i, &stage, NULL) == PITH_OK; i++)
        elsewhere = add_stage(&stage, buf, cap) || elsewhere;
    return elsewhere;
}

int64_t session_room(const pith_model *model, const struct model_options *m)
{
    int64_t bytes;
    pith_error err;
    pith_engine_params p;
    pith_engine_params_default(&p);
    session_place(m, &p);
    cli_check(pith_kv_room(model, &p, &bytes, &err), &err);
    return bytes;
}

int64_t available_memory(const struct model_options *m)
{
    pith_device_info info;
    pith_error err;
    const char *names = session_device(m);
    char first[32];
    if (names != NULL) {
        snprintf(first, sizeof(first), "%.*s", (int)strcspn(names, ","), names);
        names = first;
    }
    cli_check(pith_device_find(names, &info, &err), &err);
    return info.free_bytes > 0 ? info.free_bytes : 0;
}
