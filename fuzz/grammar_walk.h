/*
 * grammar_walk.h - what both fuzz targets of grammars do with a tree: compile it for a small
 * vocabulary and choose tokens under its masks.
 */
#ifndef FUZZ_GRAMMAR_WALK_H
#define FUZZ_GRAMMAR_WALK_H

#include <stdio.h>
#include <stdlib.h>

#include "base/utf8.h"
#include "text/grammar/grammar.h"
#include "text/vocab/vocab_internal.h"

#define WALK_MOST 60 /* tokens of a text */

static void require(bool holds)
{
    if (!holds)
        abort();
}

/* A token for each byte, an end token, and some longer ones; never freed. */
static const struct pi_vocab *small_vocab(void)
{
    static const char *const words[] = {"true", "false,", "\":",      "\",", "}]",
                                        "{\"",  "ab",     "\xc3\xa9", "12",  "a\",\"b",
                                        "\n  ", "\xc3",   "bc\""};
    static struct pi_vocab v;
    static struct pi_token token[257 + PI_LEN(words)];
    static uint8_t attr[257 + PI_LEN(words)];
    static char text[512];
    uint32_t used = 0;
    if (v.n_id > 0)
        return &v;
    for (uint32_t b = 0; b < 256; b++, used++) {
        text[used] = (char)b;
        token[b] = (struct pi_token){.piece = used, .piece_len = 1};
    }
    attr[256] = PI_TOKEN_CONTROL | PI_TOKEN_END;
    for (uint32_t i = 0; i < PI_LEN(words); i++) {
        uint32_t len = (uint32_t)strlen(words[i]);
        memcpy(text + used, words[i], len);
        token[257 + i] = (struct pi_token){.piece = used, .piece_len = len};
        used += len;
    }
    v = (struct pi_vocab){.type = PI_VOCAB_SPM, .token = token, .attr = attr, .text = text};
    v.n_id = v.n_token = (int32_t)PI_LEN(token);
    return &v;
}

/* One text; its bytes in out, and whether it ended. Each token of a mask must be taken, and a text
   that can go on or end must have one. */
static bool walk(const pith_grammar *g, uint64_t seed, char *out, size_t cap, size_t *len)
{
    const struct pi_vocab *v = small_vocab();
    uint64_t bits[8];
    pith_error err;
    pith_grammar_state *s = NULL;
    bool ended = false;
    *len = 0;
    require(pith_grammar_state_create(g, &s, &err) == PITH_OK || err.message[0] != 0);
    for (int i = 0; s != NULL && i < WALK_MOST && !ended; i++) {
        int32_t ids[512], n = 0;
        if (pith_grammar_state_mask(s, bits, &err) != PITH_OK) {
            require(err.status == PITH_UNSUPPORTED && err.message[0] != 0);
            break;
        }
        for (int32_t id = 0; id < v->n_id; id++)
            if ((bits[id / 64] >> (id % 64) & 1) != 0)
                ids[n++] = id;
        require(n > 0);
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        int32_t id =
            i > WALK_MOST / 2 && (bits[4] & 1) != 0 ? 256 : ids[(seed >> 33) % (uint32_t)n];
        if (pith_grammar_state_accept(s, id, &err) != PITH_OK) {
            require(err.status == PITH_UNSUPPORTED);
            break;
        }
        ended = id == 256;
        if (!ended && *len + v->token[id].piece_len <= cap) {
            memcpy(out + *len, v->text + v->token[id].piece, v->token[id].piece_len);
            *len += v->token[id].piece_len;
        }
    }
    pith_grammar_state_free(s);
    return ended;
}

#endif
