//! How the system schedules the threads of the engine.
#![allow(unsafe_code)]

/// Have the system run this thread without taking the core of a thread that runs already, when this one wakes up. A policy that
/// the user has chosen stays (chrt(1)).
///
/// The thread that trains wakes the threads of the engine when it takes a batch. Under the normal policy one of them took its
/// core in half of the steps, for a tick (4 ms), before it had its batch: 3 % of a step of 87 ms with seven threads on two
/// cores. A batch thread has the same share of a busy core as before (sched(7), `SCHED_BATCH`).
pub(super) fn yield_to_running_threads() {
    #[cfg(target_os = "linux")]
    {
        // SAFETY: the call reads nothing of ours. 0 is the calling thread.
        if unsafe { libc::sched_getscheduler(0) } != libc::SCHED_OTHER {
            return;
        }
        let parameters = libc::sched_param { sched_priority: 0 };
        // SAFETY: the call reads one struct, which outlives it.
        let set = unsafe { libc::sched_setscheduler(0, libc::SCHED_BATCH, &raw const parameters) };
        // A sandbox may forbid it. The thread then keeps its policy.
        let _ = set;
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn only_the_calling_thread_gets_the_policy() {
        // SAFETY: the calls only ask for the policy of the calling thread.
        let policy = || unsafe { libc::sched_getscheduler(0) };
        let before = policy();
        let thread = std::thread::spawn(move || {
            yield_to_running_threads();
            policy()
        });
        assert_eq!(thread.join().expect("it does not panic"), libc::SCHED_BATCH);
        assert_eq!(policy(), before);
    }

    #[test]
    fn a_thread_that_is_to_run_only_when_all_else_rests_stays_so() {
        let thread = std::thread::spawn(|| {
            let parameters = libc::sched_param { sched_priority: 0 };
            // SAFETY: the calls are about the calling thread and read one struct, which outlives them.
            unsafe {
                libc::sched_setscheduler(0, libc::SCHED_IDLE, &raw const parameters);
                yield_to_running_threads();
                libc::sched_getscheduler(0)
            }
        });
        assert_eq!(thread.join().expect("it does not panic"), libc::SCHED_IDLE);
    }
}
