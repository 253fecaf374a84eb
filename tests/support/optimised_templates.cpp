// Optimised bodies of the templates that test programs and the engine share. Tests are compiled with -O0, and where two
// objects have a body of std::string, JSON or shared pointers, the linker takes that of the first: this object is the
// first of each test program, so that the engine runs as it does for its users. (libstdc++ instantiates strings itself
// for C++17.)
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

template class std::basic_string<char>;
template class std::vector<std::string>;
template class nlohmann::basic_json<>;

// What every shared_ptr counts with. One function of it is specialised: it has a body where its address is taken.
using SharedCount = std::_Sp_counted_base<std::__default_lock_policy>;
template class std::_Sp_counted_base<std::__default_lock_policy>;
[[gnu::used]] static void (SharedCount::*const kRelease)() noexcept = &SharedCount::_M_release;
