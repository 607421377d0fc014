/*
 * nfc.h - text in Unicode's composed form (NFC), as some tokenizers want it: letters and the marks
 * on them are one character where there is one. It is a pure function of the bytes.
 */
#ifndef PI_NFC_H
#define PI_NFC_H

#include "base/base.h"

struct pi_nfc_char;

/* The buffers of composing, kept between calls. Zero it before the first. */
struct pi_nfc {
    char *out; /* owned */
    size_t out_cap;
    struct pi_nfc_char
        *part; /* [part_cap] what stands between two places that never change; owned */
    size_t part_cap;
};

void pi_nfc_free(struct pi_nfc *nfc);

/* Composes text. *out is text itself where it is composed already, else it is borrowed until the
   next call. Bytes that are no well-formed UTF-8 stay, and nothing joins across them. The time is
   linear in len. NOMEM. */
pith_status pi_nfc_compose(struct pi_nfc *nfc, const char *text, size_t len, const char **out,
                           size_t *out_len, pith_error *err);

#endif
