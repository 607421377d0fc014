/*
 * tools_json.h - JSON read byte by byte: says with each byte whether a value still can be JSON, and
 * where it ends. Bare control characters in strings are let through, as models write them; the code
 * that copies the text escapes them (tools_json_bare).
 */
#ifndef PI_SERVE_TOOLS_JSON_H
#define PI_SERVE_TOOLS_JSON_H

#include "base/base.h"

#define TOOLS_JSON_DEPTH 256

enum tools_json_state {
    TOOLS_JSON_VALUE, /* a value must come */
    TOOLS_JSON_VALUE_OR_END,
    TOOLS_JSON_KEY,
    TOOLS_JSON_KEY_OR_END,
    TOOLS_JSON_COLON,
    TOOLS_JSON_AFTER, /* a value has ended */
    TOOLS_JSON_STRING,
    TOOLS_JSON_ESCAPE,
    TOOLS_JSON_HEX,
    TOOLS_JSON_LOW, /* the backslash of the second half of a surrogate pair, then its u */
    TOOLS_JSON_LITERAL,
    TOOLS_JSON_MINUS,
    TOOLS_JSON_ZERO,
    TOOLS_JSON_INT,
    TOOLS_JSON_POINT,
    TOOLS_JSON_FRACTION,
    TOOLS_JSON_E,
    TOOLS_JSON_SIGN,
    TOOLS_JSON_EXPONENT,
};

/* Zeroed: before the first byte of a value, which is an object, an array or a string. */
struct tools_json {
    uint8_t is_object[TOOLS_JSON_DEPTH];
    int32_t depth;
    enum tools_json_state state;
    bool in_key;         /* the string is a key */
    const char *literal; /* what must still come of it */
    int32_t n_hex;       /* digits seen of \uXXXX */
    uint32_t hex;
    bool low_due;   /* \uXXXX must be the second half */
    bool low_u;     /* TOOLS_JSON_LOW: the backslash has come */
    int32_t n_more; /* continuation bytes that must come */
    uint8_t lo, hi; /* bounds of the next one */
};

enum tools_json_result { TOOLS_JSON_BAD, TOOLS_JSON_MORE, TOOLS_JSON_DONE };

/* Takes a byte. DONE: the value ends with it. BAD: nothing more may be asked of it. */
enum tools_json_result tools_json_step(struct tools_json *j, uint8_t c);

/* Whether c, the next byte, is a control character within a string, to be escaped. */
static inline bool tools_json_bare(const struct tools_json *j, uint8_t c)
{
    return j->state == TOOLS_JSON_STRING && c < 0x20;
}

/* Writes byte c of a string as JSON: 1 to 6 bytes. */
size_t tools_json_escape(uint8_t c, char out[8]);

/* Whether text[0..len) is one JSON object and nothing else, white space aside. */
bool tools_json_is_object(const char *text, size_t len);

#endif
