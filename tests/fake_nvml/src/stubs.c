/* Everything nvml.h declares and no other file defines: the name exists, the answer is "not
 * supported". build.py writes stubs.def, one STUB(name) per function, from the header itself. */
int fake_not_supported(const char *function);

#define STUB(name) \
    int name(void) \
    { \
        return fake_not_supported(#name); \
    }
#include "stubs.def"
