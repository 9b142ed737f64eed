#include "src/http/crew.h"

#include <pthread.h>

#include <utility>

namespace sluice::http {

Crew::Crew(std::string name, int threads) {
  for (int i = 0; i < threads; ++i)
    threads_.emplace_back([this, name] {
      pthread_setname_np(pthread_self(), name.c_str());
      work();
    });
}

Crew::~Crew() { finish(); }

void Crew::post(Task task) {
  {
    const MutexLock lock(mutex_);
    if (is_finishing_) return;
    tasks_.push_back(std::move(task));
  }
  changed_.notify_one();
}

void Crew::post_at(Clock::time_point time, Task task) {
  {
    const MutexLock lock(mutex_);
    if (is_finishing_) return;
    later_.emplace(time, std::move(task));
  }
  changed_.notify_one();
}

void Crew::finish() {
  {
    const MutexLock lock(mutex_);
    is_finishing_ = true;
  }
  changed_.notify_all();
  threads_.clear();                                // joins
  std::multimap<Clock::time_point, Task> dropped;  // what they hold goes outside of the lock
  const MutexLock lock(mutex_);
  later_.swap(dropped);
}

void Crew::work() {
  MutexLock lock(mutex_);
  for (;;) {
    while (!later_.empty() && later_.begin()->first <= Clock::now())
      tasks_.push_back(std::move(later_.extract(later_.begin()).mapped()));
    if (!tasks_.empty()) {
      Task task = std::move(tasks_.front());
      tasks_.pop_front();
      lock.unlock();
      task();
      task = nullptr;  // what it holds goes outside of the lock
      lock.lock();
    } else if (is_finishing_) {
      return;
    } else if (later_.empty()) {
      changed_.wait(lock);
    } else {
      changed_.wait_until(lock, Clock::time_point(later_.begin()->first));
    }
  }
}

}  // namespace sluice::http
