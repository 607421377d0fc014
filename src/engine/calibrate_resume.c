/*
 * calibrate_resume.c - the file of targets of a calibration that was stopped. It has a header
 * (magic and key), then for each text its rows and their sum (XXH64). It is of one machine and one
 * version, and is thrown away when the calibration is done.
 * Invariant: what is read back is what was written, or nothing.
 */
#include "engine/calibrate_resume.h"

#define MAGIC UINT64_C(0x3154524150485450) /* "PTHPART1" */

struct header {
    uint64_t magic, key;
};

pith_status pi_resume_open(struct pi_resume *r, const char *path, uint64_t key, pith_error *err)
{
    struct header head = {0};
    pith_error why;
    *r = (struct pi_resume){0};
    if (path == NULL)
        return PITH_OK;
    pith_status status = pi_disk_open(path, &r->disk, &why);
    if (status != PITH_OK)
        return pi_file_fail(path, status, &why, err);
    r->at = sizeof(head);
    if (r->disk.size >= (int64_t)sizeof(head) &&
        pi_disk_read(&r->disk, 0, &head, sizeof(head), NULL) == PITH_OK && head.magic == MAGIC &&
        head.key == key)
        return PITH_OK;
    head = (struct header){MAGIC, key};
    status = pi_disk_resize(&r->disk, 0, &why);
    if (status == PITH_OK)
        status = pi_disk_write(&r->disk, 0, &head, sizeof(head), &why);
    r->disk.size = sizeof(head);
    if (status == PITH_OK)
        return PITH_OK;
    pi_resume_close(r);
    return pi_file_fail(path, status, &why, err);
}

void pi_resume_close(struct pi_resume *r)
{
    if (r->disk.open)
        pi_disk_close(&r->disk);
    *r = (struct pi_resume){0};
}

bool pi_resume_read(struct pi_resume *r, float *rows, int32_t n_row, int64_t n, size_t stride)
{
    size_t size = (size_t)n * sizeof(*rows);
    uint64_t sum;
    struct pi_sum is;
    int64_t at = r->at;
    pi_sum_start(&is);
    if (!r->disk.open || at + (int64_t)(size * (size_t)n_row + sizeof(sum)) > r->disk.size)
        return false;
    for (int32_t i = 0; i < n_row; i++, at += (int64_t)size) {
        if (pi_disk_read(&r->disk, at, rows + (size_t)i * stride, size, NULL) != PITH_OK)
            return false;
        pi_sum_add(&is, rows + (size_t)i * stride, size);
    }
    if (pi_disk_read(&r->disk, at, &sum, sizeof(sum), NULL) != PITH_OK || sum != pi_sum_value(&is))
        return false;
    r->at = at + (int64_t)sizeof(sum);
    return true;
}

void pi_resume_write(struct pi_resume *r, const float *rows, int32_t n_row, int64_t n,
                     size_t stride)
{
    size_t size = (size_t)n * sizeof(*rows);
    struct pi_sum is;
    int64_t at = r->at;
    pith_status status = r->disk.open ? PITH_OK : PITH_IO;
    pi_sum_start(&is);
    for (int32_t i = 0; i < n_row && status == PITH_OK; i++, at += (int64_t)size) {
        status = pi_disk_write(&r->disk, at, rows + (size_t)i * stride, size, NULL);
        pi_sum_add(&is, rows + (size_t)i * stride, size);
    }
    const uint64_t sum = pi_sum_value(&is);
    if (status != PITH_OK || pi_disk_write(&r->disk, at, &sum, sizeof(sum), NULL) != PITH_OK)
        return;
    r->at = r->disk.size = at + (int64_t)sizeof(sum);
}
