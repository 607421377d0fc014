/*
 * grammar_format.c - formats of strings as patterns that only what the format's RFC allows matches;
 * of names and addresses the usual part of that.
 */
#include "text/grammar/grammar_schema.h"

#define LEAP "([12][0-9](0[48]|[2468][048]|[13579][26])|2000)"
#define DATE                                                                                       \
    "([12][0-9]{3}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|"  \
    "02-(0[1-9]|1[0-9]|2[0-8]))|" LEAP "-02-29)"
#define CLOCK "([01][0-9]|2[0-3]):[0-5][0-9]"
#define TIME CLOCK ":[0-5][0-9](\\.[0-9]{1,6})?(Z|[+-]" CLOCK ")"
#define OCTET "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
#define IPV4 OCTET "(\\." OCTET "){3}"
#define H16 "[0-9a-fA-F]{1,4}"
#define LABEL "[a-zA-Z0-9]([a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?"
#define HOST LABEL "(\\." LABEL "){0,3}"
#define PATH_CHAR "([a-zA-Z0-9._~!$&'()*+,;=:@-]|%[0-9A-F]{2})"

static const struct {
    const char *name, *pattern;
} formats[] = {
    {"date", "^" DATE "$"},
    {"time", "^" TIME "$"},
    {"date-time", "^" DATE "T" TIME "$"},
    {"duration",
     "^P([0-9]{1,4}W|([0-9]{1,4}Y([0-9]{1,4}M([0-9]{1,4}D)?)?|[0-9]{1,4}M([0-9]{1,4}D)?|"
     "[0-9]{1,4}D)(T([0-9]{1,4}H([0-9]{1,4}M([0-9]{1,4}S)?)?|[0-9]{1,4}M([0-9]{1,4}S)?|"
     "[0-9]{1,4}S))?|T([0-9]{1,4}H([0-9]{1,4}M([0-9]{1,4}S)?)?|[0-9]{1,4}M([0-9]{1,4}S)?"
     "|[0-9]{1,4}S))$"},
    {"uuid", "^[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}$"},
    {"ipv4", "^" IPV4 "$"},
    {"ipv6", "^((" H16 ":){7}" H16 "|(" H16 ":){1,6}:" H16 "|(" H16 ":){1,5}(:" H16 "){1,2}|(" H16
             ":){1,4}(:" H16 "){1,3}|(" H16 ":){1,3}(:" H16 "){1,4}|(" H16 ":){1,2}(:" H16
             "){1,5}|" H16 ":(:" H16 "){1,6}|:(:" H16 "){1,6}|::)$"},
    {"email", "^[a-zA-Z0-9_+-]{1,20}(\\.[a-zA-Z0-9_+-]{1,20}){0,2}@" HOST "$"},
    {"hostname", "^" HOST "$"},
    {"uri", "^[a-zA-Z][a-zA-Z0-9+.-]{0,20}://" HOST "(:[1-9][0-9]{0,3})?(/" PATH_CHAR "*)*"
            "(\\?(" PATH_CHAR "|[/?])*)?(#(" PATH_CHAR "|[/?])*)?$"},
    {"uri-reference", "^(/" PATH_CHAR "*)+(\\?(" PATH_CHAR "|[/?])*)?(#(" PATH_CHAR "|[/?])*)?$"},
    {"json-pointer", "^(/([^\\x00-\\x1f~/]|~[01])*)*$"},
};

const char *schema_format(const struct jinja_str *name)
{
    for (size_t i = 0; i < PI_LEN(formats); i++)
        if (jinja_str_is(name, formats[i].name))
            return formats[i].pattern;
    return NULL;
}
