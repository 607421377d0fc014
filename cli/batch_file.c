/*
 * batch_file.c - the input and the output file of a batch. It knows lines and names, and nothing of
 * models.
 *
 * Invariant: the output ends with a whole line after every call, also where the disk was full.
 */
#define _DEFAULT_SOURCE
#define _POSIX_C_SOURCE 200809L

#include "batch_file.h"
#include "hash.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- lines ---- */

/* The next line of a text that is not blank, without its newline; false: there is none. */
struct lines {
    const char *at, *end;
    int64_t number;
};

static bool next_line(struct lines *l, const char **line, size_t *len)
{
    while (l->at < l->end) {
        const char *end = memchr(l->at, '\n', (size_t)(l->end - l->at));
        *line = l->at;
        *len = (size_t)((end != NULL ? end : l->end) - l->at);
        l->at = end != NULL ? end + 1 : l->end;
        l->number++;
        size_t n_blank = 0;
        while (n_blank < *len && strchr(" \t\r", (*line)[n_blank]) != NULL &&
               (*line)[n_blank] != '\0')
            n_blank++;
        if (n_blank < *len)
            return true;
    }
    return false;
}

/* ---- the input ---- */

static struct lines input_lines(const struct batch_input *in)
{
    return (struct lines){in->text.data, in->text.data + in->text.len, 0};
}

static void fail_as_a_whole(const struct batch_input *in, const struct serve_batch_setup *setup)
{
    pith_error err;
    struct serve_batch_line *line;
    const struct batch_item *item = &in->item[0];
    if (serve_batch_read(item->at, item->len, item->number, setup, 0, &line, &err) != PITH_OK)
        cli_fail("%s, line %lld: %s", in->path, (long long)item->number, err.message);
}

/* The shard of a custom_id: FNV-1a, mixed by SplitMix64's end, so that all its bits count. */
static int64_t shard_of(const char *name, int64_t n)
{
    return (int64_t)(batch_mix(cli_hash(CLI_HASH_EMPTY, name, strlen(name))) % (uint64_t)n);
}

static void note_name(struct batch_input *in, struct batch_item *item, const char *name)
{
    const json_t *first = json_object_get(in->names, name);
    if (first != NULL)
        item->twin = in->item[json_integer_value(first)].number;
    else if (json_object_set_new(in->names, name, json_integer((json_int_t)in->n - 1)) != 0)
        cli_fail("no memory for the names of %zu requests", in->n);
}

/* Judges a line, and remembers its name where it is of the shard; false: it is no request. */
static bool add_item(struct batch_input *in, struct batch_item *item, struct batch_shard shard,
                     const struct serve_batch_setup *setup)
{
    pith_error err;
    struct serve_batch_line *line;
    pith_status status = serve_batch_read(item->at, item->len, item->number, setup, 0, &line, &err);
    item->wrong = status == PITH_FORMAT;
    if (!item->wrong)
        cli_check(status, &err);
    bool ours = (item->wrong ? 0 : shard_of(serve_batch_name(line), shard.n)) == shard.index;
    in->n += ours;
    if (ours && !item->wrong) {
        note_name(in, item, serve_batch_name(line));
        item->chat = serve_batch_is_chat(line);
        item->n_answer = item->twin == 0 ? serve_batch_n_answer(line) : 0;
    }
    serve_batch_free(line);
    return !item->wrong;
}

void batch_input_read(struct batch_input *in, const char *path, struct batch_shard shard,
                      const struct serve_batch_setup *setup)
{
    const char *line;
    size_t len, n = 0;
    bool any = false;
    *in = (struct batch_input){.path = path, .text = cli_read_file(path), .names = json_object()};
    struct lines lines = input_lines(in);
    while (next_line(&lines, &line, &len))
        n++;
    if (n == 0)
        cli_fail("%s: there is no request in it", path);
    in->item = cli_alloc(n, sizeof(*in->item));
    if (in->names == NULL)
        cli_fail("no memory for the names of %zu requests", n);
    lines = input_lines(in);
    while (next_line(&lines, &line, &len)) {
        in->item[in->n] = (struct batch_item){.at = line, .len = len, .number = lines.number};
        any = add_item(in, &in->item[in->n], shard, setup) || any;
    }
    if (!any)
        fail_as_a_whole(in, setup);
}

void batch_input_free(struct batch_input *in)
{
    free(in->item);
    free(in->text.data);
    json_decref(in->names);
    *in = (struct batch_input){0};
}

/* ---- the output ---- */

static int compare_numbers(const void *key, const void *item)
{
    int64_t a = *(const int64_t *)key, b = ((const struct batch_item *)item)->number;
    return a < b ? -1 : a > b;
}

/* Marks what the output has of a line of its input. */
static void mark_done(struct batch_input *in, const char *name, const json_t *line)
{
    int64_t number = json_integer_value(line);
    struct batch_item *item =
        line != NULL ? bsearch(&number, in->item, in->n, sizeof(*in->item), compare_numbers) : NULL;
    const json_t *index = line == NULL ? json_object_get(in->names, name) : NULL;
    if (index != NULL)
        item = &in->item[json_integer_value(index)];
    if (item != NULL)
        item->done = true;
}

/* Whether the end of a file may be a line of a batch's output that was not written whole. */
static bool is_torn(const char *rest, size_t len)
{
    static const char first[] = "{\"id\":\"batch_req_"; /* as serve_batch_answer begins a line */
    size_t n = sizeof(first) - 1;
    return memcmp(rest, first, len < n ? len : n) == 0;
}

/* Marks the items that a file has, and returns the bytes of its whole lines. The rest may be
   dropped where a batch can have left it. */
static int64_t read_done(const char *path, struct batch_input *in)
{
    struct cli_text text = cli_read_file(path);
    const char *line;
    size_t len, size = text.len;
    while (text.len > 0 && text.data[text.len - 1] != '\n')
        text.len--;
    if (!is_torn(text.data + text.len, size - text.len))
        cli_fail(
            "--resume: the end of \"%s\", %zu bytes without a newline, is no part of a batch's "
            "output",
            path, size - text.len);
    struct lines lines = {text.data, text.data + text.len, 0};
    while (next_line(&lines, &line, &len)) {
        json_t *json = json_loadb(line, len, JSON_ALLOW_NUL, NULL);
        const char *name = json_string_value(json_object_get(json, "custom_id"));
        const json_t *number = json_object_get(json, "line"); /* of an item that has no name of its
                                                                 own */
        if ((name == NULL && !json_is_integer(number)) || json_object_get(json, "response") == NULL)
            cli_fail("--resume: line %lld of \"%s\" is no line of a batch's output",
                     (long long)lines.number, path);
        mark_done(in, name, number);
        json_decref(json);
    }
    free(text.data);
    return (int64_t)text.len;
}

/* The whole lines of the file, after which goes what is new. */
static void take_up(struct batch_output *out, off_t size, struct batch_input *in)
{
    out->end = read_done(out->path, in);
    if (size == out->end)
        return;
    cli_note("the rest of a line at the end of \"%s\" is dropped, %lld bytes", out->path,
             (long long)(size - out->end));
    if (ftruncate(out->fd, out->end) != 0)
        cli_fail("cannot write \"%s\": %s", out->path, strerror(errno));
}

static bool same_file(const char *a, const char *b)
{
    struct stat file_a, file_b;
    return stat(a, &file_a) == 0 && stat(b, &file_b) == 0 && file_a.st_dev == file_b.st_dev &&
           file_a.st_ino == file_b.st_ino;
}

void batch_output_open(struct batch_output *out, const char *path, bool resume,
                       struct batch_input *in)
{
    struct stat file;
    if (same_file(in->path, path))
        cli_fail_usage("-f and -o name the same file, \"%s\"", path);
    *out = (struct batch_output){.path = path,
                                 .fd = open(path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0666)};
    if (out->fd < 0 || fstat(out->fd, &file) != 0)
        cli_fail("cannot write \"%s\": %s", path, strerror(errno));
    if (flock(out->fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
        cli_fail("\"%s\" is being written by another process", path);
    if (resume && !S_ISREG(file.st_mode))
        cli_fail("--resume: \"%s\" is no file that could be gone on with", path);
    if (resume)
        take_up(out, file.st_size, in);
    else if (file.st_size > 0)
        cli_fail("\"%s\" is there already: --resume goes on with it", path);
}

/* Writes all bytes, or takes back what it wrote. */
static bool write_whole(struct batch_output *out, const char *data, size_t len)
{
    for (size_t at = 0; at < len;) {
        ssize_t n = write(out->fd, data + at, len - at);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0) {
            out->error = n < 0 ? errno : EIO;
            if (at > 0 && ftruncate(out->fd, out->end) != 0)
                cli_note("the last line of \"%s\" is not whole; --resume drops it", out->path);
            return false;
        }
        at += (size_t)n;
    }
    out->end += (int64_t)len;
    return true;
}

bool batch_output_add(struct batch_output *out, json_t *line)
{
    char *text = json_dumps(line, JSON_COMPACT);
    json_decref(line);
    if (text == NULL)
        cli_fail("no memory for a line of \"%s\"", out->path);
    size_t len = strlen(text);
    text[len] = '\n'; /* in place of the zero: a line goes out in one write */
    bool ok = out->error == 0 && write_whole(out, text, len + 1);
    free(text);
    return ok;
}

bool batch_output_close(struct batch_output *out)
{
    if (out->error == 0 && fsync(out->fd) != 0 && errno != EINVAL && errno != EROFS)
        out->error = errno; /* EINVAL: a pipe or a device, which has no disk behind it */
    if (close(out->fd) != 0 && out->error == 0)
        out->error = errno;
    out->fd = -1;
    return out->error == 0;
}
