/// Python objects from C++ at the least cost: attributes and methods by interned names.
#pragma once

#include <nanobind/nanobind.h>

#include <array>
#include <cstddef>
#include <initializer_list>

namespace tilewise::python {

namespace nb = nanobind;

/// A new reference that the C API made; throws the Python error where it is null.
inline nb::object checked(PyObject* made) {
  if (made == nullptr) throw nb::python_error();
  return nb::steal(made);
}

inline bool is_true(nb::handle object) {
  const int answer = PyObject_IsTrue(object.ptr());
  if (answer < 0) throw nb::python_error();
  return answer != 0;
}

/// An attribute or method that Python looks up without making a string anew.
class Name {
 public:
  explicit Name(const char* text) : text_(PyUnicode_InternFromString(text)) {}

  nb::object of(nb::handle object) const { return checked(PyObject_GetAttr(object.ptr(), text_)); }
  void set(nb::handle object, nb::handle value) const {
    if (PyObject_SetAttr(object.ptr(), text_, value.ptr()) != 0) throw nb::python_error();
  }
  nb::object call(nb::handle object) const {
    return checked(PyObject_CallMethodNoArgs(object.ptr(), text_));
  }
  nb::object call(nb::handle object, nb::handle argument) const {
    return checked(PyObject_CallMethodOneArg(object.ptr(), text_, argument.ptr()));
  }
  /// object.name(*arguments), of at most 5. `keywords`: a tuple with the names of the last ones.
  nb::object call(nb::handle object, std::initializer_list<nb::handle> arguments,
                  nb::handle keywords = {}) const {
    std::array<PyObject*, 6> given{object.ptr()};
    std::size_t count = 1;
    for (const nb::handle argument : arguments) given.at(count++) = argument.ptr();
    const std::size_t named = keywords.is_valid() ? nb::len(keywords) : 0;
    return checked(PyObject_VectorcallMethod(text_, given.data(), count - named, keywords.ptr()));
  }

 private:
  PyObject* text_;
};

}  // namespace tilewise::python
