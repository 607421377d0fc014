/*
 * fuzz_vocab.c - a vocabulary from any bytes, and any text through it and back; the text also
 * through the UTF-8 stream and as a chat. The input is two bytes (little-endian, the length of the
 * text), a GGUF file, the text. A finding is a sanitizer's report, a leak, a refusal without a
 * sentence, or two ways to the same result that differ.
 */
#include <stdlib.h>

#include "base/mem.h"
#include "base/utf8.h"
#include "text/template/chat.h"
#include "text/vocab/vocab.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool holds)
{
    if (!holds)
        abort();
}

static void check(pith_status status, const pith_error *err)
{
    require(status == PITH_OK || (err->message[0] != 0 && err->status == status));
}

/* A smaller cap gives the same ids and says how many there are. */
static void check_cap(const struct pi_vocab *v, const char *text, size_t len, uint32_t flags,
                      const int32_t *ids, int32_t n)
{
    int32_t cap = n / 2, needed = -1;
    int32_t *part = malloc(((size_t)cap + 1) * sizeof(*part));
    pith_error err;
    require(pi_vocab_tokenize(v, text, len, flags, part, cap, &needed, &err) ==
            (n > 0 ? PITH_RANGE : PITH_OK));
    require(needed == n && memcmp(part, ids, (size_t)cap * sizeof(*part)) == 0);
    free(part);
}

/* The text of ids is that of each token, but for one space in front. */
static void check_back(const struct pi_vocab *v, const int32_t *ids, int32_t n)
{
    size_t len = 0, whole = 0, sum = 0;
    pith_error err;
    pith_status status = pi_vocab_detokenize(v, ids, n, true, NULL, 0, &whole, &err);
    require(status == PITH_OK || status == PITH_RANGE);
    char *text = malloc(whole + 1);
    require(pi_vocab_detokenize(v, ids, n, true, text, whole, &len, &err) == PITH_OK &&
            len == whole);
    for (int32_t i = 0; i < n; i++) {
        require(ids[i] >= 0 && ids[i] < pi_vocab_size(v));
        status = pi_vocab_token_bytes(v, ids[i], true, NULL, 0, &len);
        require(status == (len > 0 ? PITH_RANGE : PITH_OK));
        sum += len;
    }
    require(sum == whole || sum == whole + 1);
    free(text);
}

static void tokenize(const struct pi_vocab *v, const char *text, size_t len)
{
    /* A byte is at most one id; BOS and EOS come on top. SentencePiece adds a space after a special
       token, and a composed text has at most three times the bytes. */
    int32_t cap = 3 * (int32_t)len + 4, n = 0;
    int32_t *ids = malloc((size_t)cap * sizeof(*ids));
    for (uint32_t flags = 0; flags < 4; flags++) {
        pith_error err = {0};
        pith_status status = pi_vocab_tokenize(v, text, len, flags, ids, cap, &n, &err);
        check(status, &err);
        if (status != PITH_OK)
            break;
        check_cap(v, text, len, flags, ids, n);
        check_back(v, ids, n);
    }
    free(ids);
}

/* Whole and in two pieces, the stream gives the same, well-formed text. */
static void stream(const char *text, size_t len)
{
    size_t cap = 3 * (len + 4), n[2];
    char *out[2] = {malloc(cap), malloc(cap)};
    for (size_t i = 0; i < 2; i++) {
        pith_utf8_stream s = {0};
        size_t cut = i == 0 ? len : len / 2;
        n[i] = pith_utf8_push(&s, text, cut, out[i], cap);
        n[i] += pith_utf8_push(&s, text + cut, len - cut, out[i] + n[i], cap - n[i]);
        n[i] += pith_utf8_push(&s, NULL, 0, out[i] + n[i], cap - n[i]);
    }
    require(pi_utf8_span(out[0], n[0]) == n[0]);
    require(n[0] == n[1] && memcmp(out[0], out[1], n[0]) == 0);
    free(out[0]);
    free(out[1]);
}

/* The text as messages, split at its line ends. */
static void chat(const char *text, size_t len)
{
    static const char *const roles[] = {"user", "assistant", "system"};
    pith_message messages[6];
    int32_t n = 0;
    char *copy = malloc(len + 1);
    memcpy(copy, text, len);
    copy[len] = 0;
    const char *name = pi_chat_name(len > 0 ? (uint8_t)text[0] % 24 : 0);
    for (char *line = copy; line != NULL && n < 6; n++) {
        char *end = strchr(line, '\n');
        if (end != NULL)
            *end++ = 0;
        messages[n] = (pith_message){roles[(uint8_t)line[0] % 3], line};
        line = end;
    }
    for (uint32_t flags = 0; flags < 4; flags++) {
        size_t needed = 0, again;
        pith_error err = {0};
        pith_status status = pi_chat_render(name, messages, n, flags, NULL, 0, &needed, &err);
        check(status, &err);
        if (status != PITH_OK && status != PITH_RANGE)
            continue;
        char *out = malloc(needed + 1);
        require(pi_chat_render(name, messages, n, flags, out, needed, &again, &err) == PITH_OK &&
                again == needed);
        free(out);
    }
    free(copy);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct pi_gguf g;
    struct pi_vocab *v = NULL;
    pith_error err = {0};
    if (size < 2)
        return 0;
    size_t len = (size_t)data[0] | (size_t)data[1] << 8;
    data += 2;
    size -= 2;
    len = len < size ? len : size;
    /* Copies of their own sizes, so that a read beyond an end is seen. */
    char *file = malloc(size - len + 1), *text = malloc(len + 1);
    memcpy(file, data, size - len);
    memcpy(text, data + size - len, len);
    pith_status status = pi_gguf_parse(&g, file, size - len, "fuzz", &err);
    check(status, &err);
    if (status == PITH_OK) {
        err = (pith_error){0};
        status = pi_vocab_load(&g, 40, &v, &err);
        check(status, &err);
        pi_gguf_free(&g);
    }
    memset(file, 0x55, size - len); /* the vocabulary must not need the file any more */
    if (v != NULL)
        tokenize(v, text, len);
    pi_vocab_free(v);
    stream(text, len);
    chat(text, len);
    free(file);
    free(text);
    require(pi_mem_used(PI_MEM_MODEL) == 0 && pi_mem_used(PI_MEM_OTHER) == 0);
    return 0;
}
