#pragma once
// A list that is made once and then only read: its copies share it.
#include <cstddef>
#include <memory>
#include <vector>

namespace sluice {

template <typename T>
class SharedList {
 public:
  SharedList() = default;
  explicit SharedList(std::vector<T> list)
      : list_(std::make_shared<const std::vector<T>>(std::move(list))) {}

  size_t size() const noexcept { return list_ ? list_->size() : 0; }
  bool empty() const noexcept { return size() == 0; }
  const T& operator[](size_t index) const { return (*list_)[index]; }
  const T& back() const { return list_->back(); }
  const T* begin() const noexcept { return list_ ? list_->data() : nullptr; }
  const T* end() const noexcept { return begin() + size(); }

 private:
  std::shared_ptr<const std::vector<T>> list_;  // none: empty
};

}  // namespace sluice
