/*
 * load_turned.c - packs matrices that the file has turned: the file's row is a column here. Each
 * slab is decoded to floats, turned, and packed anew in a type of floats. It knows no family.
 */
#include "model/load_turned.h"

#include "base/half.h"
#include "base/mem.h"
#include "base/threads.h"

enum pi_dtype pi_turned_type(enum pi_dtype in_file)
{
    return in_file == PI_DTYPE_F32 || in_file == PI_DTYPE_BF16 ? in_file : PI_DTYPE_F16;
}

struct job {
    const struct pi_turned *turned;
    const struct pi_dtype_traits *traits;
    float *slab;   /* [n_thread][n_col][n_row] as the file has it */
    uint8_t *rows; /* [n_thread][PI_GROUP][n_col] floats, or the type that they become */
};

static size_t slab_len(const struct pi_matrix *m)
{
    return (size_t)m->n_col * (size_t)m->n_row;
}

/* Row r of the matrix from the slab's columns. */
static void turn_row(const struct pi_matrix *m, const float *slab, int32_t r, uint8_t *out)
{
    for (int32_t c = 0; c < m->n_col; c++) {
        float x = slab[(size_t)c * (size_t)m->n_row + (size_t)r];
        uint16_t half = m->type == PI_DTYPE_BF16 ? pi_bf16_from_f32(x) : pi_f16_from_f32(x);
        if (m->type == PI_DTYPE_F32)
            memcpy(out + (size_t)c * sizeof(x), &x, sizeof(x));
        else
            memcpy(out + (size_t)c * sizeof(half), &half, sizeof(half));
    }
}

static void pack_slabs(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    const struct job *job = ctx;
    const struct pi_turned *t = job->turned;
    const struct pi_matrix *m = t->matrix;
    size_t in_row = pi_dtype_row_bytes(job->traits, m->n_row);
    size_t row = (size_t)m->n_col * (m->type == PI_DTYPE_F32 ? sizeof(float) : sizeof(uint16_t));
    float *slab = job->slab + (size_t)thread * slab_len(m);
    uint8_t *rows = job->rows + (size_t)thread * PI_GROUP * (size_t)m->n_col * sizeof(float);
    for (int64_t i = begin; i < end; i++) {
        struct pi_matrix out = pi_matrix_slab(m, (int32_t)i);
        for (int64_t c = 0; c < m->n_col; c++)
            job->traits->decode(t->data + (size_t)(i * t->slab_rows + c) * in_row,
                                slab + c * m->n_row, m->n_row);
        for (int32_t g = 0; g < m->n_group; g++) {
            int32_t n = (int32_t)pi_min(PI_GROUP, m->n_row - g * PI_GROUP);
            for (int32_t r = 0; r < n; r++)
                turn_row(m, slab, g * PI_GROUP + r, rows + (size_t)r * row);
            pi_matmul_pack_group(m->type, m->n_col, rows, n, out.data + (size_t)g * m->group_bytes);
        }
    }
}

pith_status pi_turned_pack(const struct pi_turned *turned, int32_t n_thread, const char *name,
                           pith_error *err)
{
    const struct pi_matrix *m = turned->matrix;
    size_t n = (size_t)n_thread * sizeof(float);
    struct job job = {.turned = turned, .traits = pi_dtype_find(turned->in_file)};
    job.slab = pi_mem_alloc_n(PI_MEM_OTHER, slab_len(m), n);
    job.rows = pi_mem_alloc_n(PI_MEM_OTHER, (size_t)PI_GROUP * (size_t)m->n_col, n);
    pith_status status = PITH_OK;
    if (job.slab == NULL || job.rows == NULL)
        status = pi_fail(err, PITH_NOMEM, "no memory to turn tensor \"%s\"", name);
    else
        pi_parallel_items(n_thread, turned->n_slab, pack_slabs, &job);
    pi_mem_free(job.slab);
    pi_mem_free(job.rows);
    return status;
}
