/*
 * tier_file.c - the file behind the tier's memory, version 1; docs/recall-file.md describes the
 * bytes. It knows places and pages, not whose they are. Invariant: whenever the process ends, the
 * file opens again. Its header is written before any page, a page before its head, and a head says
 * by checksums whether both are whole.
 */
#include "base/cursor.h"
#include "file/sum.h"
#include "policy/identity.h"
#include "policy/recall/tier.h"

#define HEAD_MARK 0x45474150u /* "PAGE" */

/* ---- the format ---- */

static size_t header_size(int32_t n_layer)
{
    return RECALL_FILE_HEADER + 4 * (size_t)n_layer + 8;
}

uint32_t recall_file_place_size(const uint8_t *bytes, int32_t layer)
{
    struct pi_cursor c = {.in = bytes, .at = RECALL_FILE_HEADER + 4 * (size_t)layer};
    return (uint32_t)pi_get(&c, 4);
}

static pith_status get_count(struct pi_cursor *c, const char *field, int32_t max, int32_t *out,
                             pith_error *err)
{
    uint64_t value = pi_get(c, 4);
    if (value < 1 || value > (uint64_t)max)
        return pi_fail(err, PITH_FORMAT, "%s: %llu is not in 1..%d", field,
                       (unsigned long long)value, max);
    *out = (int32_t)value;
    return PITH_OK;
}

/* The fields that every version has. */
static pith_status check_beginning(const uint8_t *bytes, size_t size, pith_error *err)
{
    uint32_t order;
    struct pi_cursor c = {.in = bytes, .at = 8};
    if (size < RECALL_FILE_HEADER || memcmp(bytes, RECALL_FILE_MAGIC, 8) != 0)
        return pi_fail(err, PITH_FORMAT, "this is no file of recall");
    uint64_t version = pi_get(&c, 4);
    if (version != RECALL_FILE_VERSION)
        return pi_fail(err, PITH_UNSUPPORTED,
                       "version %llu of a file of recall; this Pith uses version %d",
                       (unsigned long long)version, RECALL_FILE_VERSION);
    memcpy(&order, bytes + c.at, sizeof(order));
    if (order != RECALL_FILE_ORDER)
        return pi_fail(err, PITH_UNSUPPORTED,
                       "a machine with another order of bytes wrote this file of recall");
    return PITH_OK;
}

static pith_status get_shape(const uint8_t *bytes, struct recall_file_shape *out, pith_error *err)
{
    struct pi_cursor c = {.in = bytes, .at = 24};
    out->fingerprint = pi_get(&c, 8);
    PI_TRY(get_count(&c, "layers", RECALL_FILE_LAYER_MAX, &out->n_layer, err));
    PI_TRY(get_count(&c, "KV heads", 1 << 20, &out->n_head, err));
    PI_TRY(get_count(&c, "dimensions of keys", 1 << 20, &out->dim_k, err));
    PI_TRY(get_count(&c, "dimensions of values", 1 << 20, &out->dim_v, err));
    return get_count(&c, "places of a lane", RECALL_PAGES_MOST, &out->n_place, err);
}

pith_status recall_file_parse(const uint8_t *bytes, size_t size, struct recall_file_shape *out,
                              size_t *header, pith_error *err)
{
    struct pi_cursor c = {.in = bytes, .at = 16};
    int32_t page_len = 0, head_size = 0;
    PI_TRY(check_beginning(bytes, size, err));
    uint64_t stated = pi_get(&c, 4);
    PI_TRY(get_count(&c, "entries of a page", RECALL_PAGE_LEN, &page_len, err));
    PI_TRY(get_shape(bytes, out, err));
    c.at = 52;
    PI_TRY(get_count(&c, "bytes of a head", RECALL_HEAD_SIZE, &head_size, err));
    *header = header_size(out->n_layer);
    if (stated != *header || size < *header || page_len != RECALL_PAGE_LEN ||
        head_size != RECALL_HEAD_SIZE)
        return pi_fail(err, PITH_FORMAT, "its header of %llu bytes says what cannot be",
                       (unsigned long long)stated);
    c.at = *header - 8;
    if (pi_get(&c, 8) != pi_sum_of(bytes, *header - 8))
        return pi_fail(err, PITH_FORMAT, "the checksum of its header is wrong");
    for (int32_t l = 0; l < out->n_layer; l++)
        if (recall_file_place_size(bytes, l) <= RECALL_HEAD_SIZE)
            return pi_fail(err, PITH_FORMAT, "places of layer %d are too small for a page", l);
    return PITH_OK;
}

static void format_header(const struct recall_tier *tier, const struct recall_file_shape *shape,
                          uint8_t out[RECALL_FILE_HEADER_MAX])
{
    const uint32_t order = RECALL_FILE_ORDER;
    struct pi_cursor c = {.out = out};
    memset(out, 0, RECALL_FILE_HEADER_MAX);
    pi_put_bytes(&c, RECALL_FILE_MAGIC, 8);
    pi_put(&c, RECALL_FILE_VERSION, 4);
    pi_put_bytes(&c, &order, sizeof(order));
    pi_put(&c, header_size(shape->n_layer), 4);
    pi_put(&c, RECALL_PAGE_LEN, 4);
    pi_put(&c, shape->fingerprint, 8);
    pi_put(&c, (uint64_t)shape->n_layer, 4);
    pi_put(&c, (uint64_t)shape->n_head, 4);
    pi_put(&c, (uint64_t)shape->dim_k, 4);
    pi_put(&c, (uint64_t)shape->dim_v, 4);
    pi_put(&c, (uint64_t)shape->n_place, 4);
    pi_put(&c, RECALL_HEAD_SIZE, 4);
    c.at = RECALL_FILE_HEADER;
    for (int32_t l = 0; l < shape->n_layer; l++)
        pi_put(&c, (uint64_t)tier->shelf[(size_t)l * (size_t)shape->n_head].place_bytes, 4);
    pi_put(&c, pi_sum_of(out, c.at), 8);
}

void recall_head_format(const struct recall_head *head, uint8_t out[RECALL_HEAD_SIZE])
{
    struct pi_cursor c = {.out = out};
    memset(out, 0, RECALL_HEAD_SIZE);
    pi_put(&c, HEAD_MARK, 4);
    pi_put(&c, (uint64_t)head->lane, 4);
    pi_put(&c, (uint64_t)head->n, 4);
    pi_put(&c, 0, 4);
    pi_put(&c, head->store, 8);
    pi_put(&c, head->stamp, 8);
    pi_put(&c, head->size, 8);
    pi_put(&c, head->sum, 8);
    c.at = 64;
    for (int32_t i = 0; i < head->n; i++)
        pi_put(&c, (uint32_t)head->pos[i], 4);
    c.at = 56;
    pi_put(&c, pi_sum_of(out, RECALL_HEAD_SIZE), 8); /* of a head with zeros here */
}

pith_status recall_head_parse(const uint8_t bytes[RECALL_HEAD_SIZE], struct recall_head *out,
                              bool *empty, pith_error *err)
{
    uint8_t copy[RECALL_HEAD_SIZE];
    struct pi_cursor c = {.in = bytes};
    uint64_t any = 0;
    for (size_t i = 0; i < RECALL_HEAD_SIZE; i++)
        any |= bytes[i];
    *empty = any == 0;
    *out = (struct recall_head){0};
    if (*empty)
        return PITH_OK;
    memcpy(copy, bytes, sizeof(copy));
    memset(copy + 56, 0, 8);
    c.at = 56;
    uint64_t sum = pi_get(&c, 8);
    c.at = 0;
    if (pi_get(&c, 4) != HEAD_MARK || sum != pi_sum_of(copy, sizeof(copy)))
        return pi_fail(err, PITH_FORMAT, "the checksum of its head is wrong");
    out->lane = (int32_t)pi_get(&c, 4);
    out->n = (int32_t)pi_get(&c, 4);
    c.at = 16;
    out->store = pi_get(&c, 8);
    out->stamp = pi_get(&c, 8);
    out->size = pi_get(&c, 8);
    out->sum = pi_get(&c, 8);
    if (out->lane < 0 || out->n < 1 || out->n > RECALL_PAGE_LEN)
        return pi_fail(err, PITH_FORMAT, "its head says %d entries of lane %d", out->n, out->lane);
    c.at = 64;
    for (int32_t i = 0; i < out->n; i++)
        out->pos[i] = (int32_t)pi_get(&c, 4);
    return PITH_OK;
}

/* ---- opening ---- */

static struct recall_file_shape shape_of(const struct recall_tier *tier)
{
    const struct policy_model *m = &tier->model;
    return (struct recall_file_shape){
        .fingerprint = m->model != NULL ? pi_model_fingerprint(m->model) : 0,
        .n_layer = m->g.n_layer,
        .n_head = m->g.n_head,
        .dim_k = m->g.dim_k,
        .dim_v = m->g.dim_v,
        .n_place = tier->n_place,
    };
}

static bool same_model(const struct recall_file_shape *a, const struct recall_file_shape *b)
{
    return a->n_layer == b->n_layer && a->n_head == b->n_head && a->dim_k == b->dim_k &&
           a->dim_v == b->dim_v &&
           (a->fingerprint == b->fingerprint || a->fingerprint == 0 || b->fingerprint == 0);
}

/* Looks through the heads of a file that an earlier process left: *n_page are whole. The first one
   that is not is told of; its place is as good as the others. */
static void look_through(const struct recall_file *file, const struct recall_file_shape *shape,
                         const uint8_t *header, int64_t *n_page)
{
    uint8_t bytes[RECALL_HEAD_SIZE];
    struct recall_head head;
    pith_error why;
    bool empty, spoke = false;
    int64_t offset = (int64_t)pi_align(header_size(shape->n_layer), RECALL_FILE_ALIGN), number = 0;
    *n_page = 0;
    for (int32_t l = 0; l < shape->n_layer; l++) {
        int64_t size = (int64_t)recall_file_place_size(header, l);
        int64_t n = (int64_t)shape->n_head * shape->n_place;
        for (int64_t i = 0; i < n && offset + size <= file->disk.size; i++, offset += size) {
            pith_status status = pi_disk_read(&file->disk, offset, bytes, sizeof(bytes), &why);
            if (status == PITH_OK)
                status = recall_head_parse(bytes, &head, &empty, &why);
            *n_page += status == PITH_OK && !empty;
            if (status != PITH_OK && !spoke)
                pi_log(PITH_LOG_WARN, "recall: %s: page %lld is dropped: %s", file->path,
                       (long long)(number + i), why.message);
            spoke = spoke || status != PITH_OK;
        }
        number += n;
    }
}

/* Checks an existing file before it is written over. */
static pith_status check_old(const struct recall_tier *tier, pith_error *err)
{
    const struct recall_file *file = &tier->file;
    const struct recall_file_shape own = shape_of(tier);
    struct recall_file_shape old;
    uint8_t bytes[RECALL_FILE_HEADER_MAX];
    size_t header, size = (size_t)pi_min(file->disk.size, (int64_t)sizeof(bytes));
    int64_t n_page;
    PI_TRY(pi_disk_read(&file->disk, 0, bytes, size, err));
    PI_TRY(recall_file_parse(bytes, size, &old, &header, err));
    if (!same_model(&old, &own))
        return pi_fail(err, PITH_INVALID,
                       "the file is of another model: %d layers of %d KV heads, fingerprint "
                       "%016llx, and not %d of %d, %016llx",
                       old.n_layer, old.n_head, (unsigned long long)old.fingerprint, own.n_layer,
                       own.n_head, (unsigned long long)own.fingerprint);
    look_through(file, &old, bytes, &n_page);
    if (n_page > 0)
        pi_log(PITH_LOG_INFO, "recall: %s: %lld pages of an earlier run make room", file->path,
               (long long)n_page);
    return PITH_OK;
}

/* How many places of every lane the size has room for, and where they are. */
static pith_status place_shelves(struct recall_tier *tier, pith_error *err)
{
    int64_t all = 0;
    int64_t begin = (int64_t)pi_align(header_size(tier->model.g.n_layer), RECALL_FILE_ALIGN);
    for (int32_t i = 0; i < tier->n_shelf; i++) {
        struct recall_shelf *shelf = &tier->shelf[i];
        shelf->place_bytes = RECALL_HEAD_SIZE + (int64_t)shelf->page_bytes;
        all += shelf->place_bytes;
    }
    if (tier->o.size < begin + all)
        return pi_fail(err, PITH_INVALID,
                       "recall: size: %lld bytes are less than the %lld that a page of %d entries "
                       "takes in each of %d lanes",
                       (long long)tier->o.size, (long long)(begin + all), RECALL_PAGE_LEN,
                       tier->n_shelf);
    tier->n_place = (int32_t)pi_min((tier->o.size - begin) / all, RECALL_PAGES_MOST);
    for (int32_t i = 0; i < tier->n_shelf; i++) {
        struct recall_shelf *shelf = &tier->shelf[i];
        shelf->n_place = tier->n_place;
        shelf->offset = begin;
        begin += tier->n_place * shelf->place_bytes;
    }
    return PITH_OK;
}

static void go_without(struct recall_tier *tier, const pith_error *why)
{
    pi_log(PITH_LOG_WARN, "recall: %s: recall goes on without the file", why->message);
    pi_disk_close(&tier->file.disk);
    tier->n_place = 0;
    for (int32_t i = 0; i < tier->n_shelf; i++)
        tier->shelf[i].n_place = 0;
}

/* Makes the file new: its header before any page. */
static pith_status begin_file(struct recall_tier *tier, pith_error *err)
{
    struct recall_file *file = &tier->file;
    const struct recall_file_shape shape = shape_of(tier);
    uint8_t header[RECALL_FILE_HEADER_MAX];
    format_header(tier, &shape, header);
    file->own = true;
    PI_TRY(pi_disk_resize(&file->disk, 0, err));
    return pi_disk_write(&file->disk, 0, header, header_size(shape.n_layer), err);
}

pith_status recall_file_open(struct recall_tier *tier, pith_error *err)
{
    struct recall_file *file = &tier->file;
    pith_error reason, why;
    if (tier->o.file[0] == '\0')
        return PITH_OK;
    memcpy(file->path, tier->o.file, sizeof(file->path));
    if (tier->model.g.n_layer > RECALL_FILE_LAYER_MAX)
        return pi_fail(err, PITH_UNSUPPORTED, "recall: file: a model of %d layers",
                       tier->model.g.n_layer);
    PI_TRY(place_shelves(tier, err));
    pith_status status = pi_disk_open(file->path, &file->disk, &reason);
    if (status == PITH_OK && file->disk.size > 0)
        status = check_old(tier, &reason);
    if (status == PITH_OK)
        status = begin_file(tier, &reason);
    if (status == PITH_OK)
        return PITH_OK;
    pi_file_fail(file->path, status, &reason, &why);
    if (status != PITH_IO)
        return pi_fail(err, status, "recall: file: %s", why.message);
    go_without(tier, &why);
    return PITH_OK;
}

/* The content of the run is of no use afterwards: its room is given back. */
void recall_file_close(struct recall_tier *tier)
{
    struct recall_file *file = &tier->file;
    if (file->disk.open && file->own)
        (void)pi_disk_resize(&file->disk, (int64_t)header_size(tier->model.g.n_layer), NULL);
    pi_disk_close(&file->disk);
}

/* ---- pages ---- */

static int64_t offset_of(const struct recall_shelf *shelf, int32_t place)
{
    return shelf->offset + place * shelf->place_bytes;
}

/* The number of a place in the file, as sentences name it. */
static long long number_of(const struct recall_shelf *shelf, int32_t place)
{
    return (long long)shelf->number * shelf->n_place + place;
}

bool recall_file_write(struct recall_tier *tier, const struct recall_shelf *shelf, int32_t place,
                       struct recall_head *head, const void *page)
{
    struct recall_file *file = &tier->file;
    uint8_t bytes[RECALL_HEAD_SIZE];
    int64_t offset = offset_of(shelf, place);
    pith_error why;
    head->size = shelf->page_bytes;
    head->sum = pi_sum_of(page, shelf->page_bytes);
    recall_head_format(head, bytes);
    pith_status status =
        pi_disk_write(&file->disk, offset + RECALL_HEAD_SIZE, page, shelf->page_bytes, &why);
    if (status == PITH_OK)
        status = pi_disk_write(&file->disk, offset, bytes, sizeof(bytes), &why);
    if (status != PITH_OK && !atomic_exchange(&file->failed, true))
        pi_log(PITH_LOG_WARN, "recall: %s: %s: what memory has no room for is lost from now on",
               file->path, why.message);
    return status == PITH_OK;
}

bool recall_file_read(struct recall_tier *tier, const struct recall_shelf *shelf, int32_t place,
                      bool page, struct recall_head *head, uint8_t *buffer)
{
    struct recall_file *file = &tier->file;
    const struct recall_place *known = &shelf->place[place];
    size_t size = RECALL_HEAD_SIZE + (page ? shelf->page_bytes : 0);
    bool empty = false;
    pith_error why;
    pith_status status = pi_disk_read(&file->disk, offset_of(shelf, place), buffer, size, &why);
    if (status == PITH_OK)
        status = recall_head_parse(buffer, head, &empty, &why);
    if (status == PITH_OK && (empty || head->lane != shelf->number || head->n != known->n ||
                              head->stamp != known->stamp || head->sum != known->sum))
        status = pi_fail(&why, PITH_FORMAT, "another page stands there");
    if (status == PITH_OK && page &&
        pi_sum_of(buffer + RECALL_HEAD_SIZE, shelf->page_bytes) != known->sum)
        status = pi_fail(&why, PITH_FORMAT, "its checksum is wrong");
    if (status != PITH_OK && !atomic_exchange(&file->read_spoke, true))
        pi_log(PITH_LOG_WARN, "recall: %s: page %lld is lost: %s", file->path,
               number_of(shelf, place), why.message);
    return status == PITH_OK;
}
