//! Registration of batch memory with a device, which then copies batches from where they lie.
//!
//! A whole mapping is registered, once, when it is made, and unregistered before it is unmapped:
//! a device driver refuses ranges that overlap, and remembers a range that was unmapped.

use std::fmt;
use std::sync::Arc;

/// A device driver that reads memory of this process.
pub trait DeviceDriver: Send + Sync {
    /// Registers the `len` bytes at `address`, on any thread. Returns whether it did.
    fn register(&self, address: usize, len: usize) -> bool;
    /// Ends a registration, on any thread. The memory is unmapped afterwards.
    fn unregister(&self, address: usize, len: usize);
}

/// A handle to a [`DeviceDriver`], with which pools register their memory. A clone is the same
/// driver.
#[derive(Clone)]
pub struct HostRegistry(Arc<dyn DeviceDriver>);

impl HostRegistry {
    /// Creates a handle.
    #[must_use]
    pub fn new(driver: Arc<dyn DeviceDriver>) -> Self {
        HostRegistry(driver)
    }

    /// Registers `memory`, which must not move or be unmapped before the registration is dropped.
    /// `None` if the driver refuses: the memory then works as any other.
    pub(super) fn register(&self, memory: &[u8]) -> Option<Registration> {
        let (address, len) = (memory.as_ptr() as usize, memory.len());
        self.0.register(address, len).then(|| Registration {
            driver: Arc::clone(&self.0),
            address,
            len,
            process: std::process::id(),
        })
    }
}

impl fmt::Debug for HostRegistry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HostRegistry")
    }
}

impl PartialEq for HostRegistry {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

/// Memory that is registered until this is dropped.
pub(super) struct Registration {
    driver: Arc<dyn DeviceDriver>,
    address: usize,
    len: usize,
    process: u32,
}

impl Drop for Registration {
    fn drop(&mut self) {
        // A forked child has a copy of the memory, and no device.
        if self.process == std::process::id() {
            self.driver.unregister(self.address, self.len);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Mutex;

    use super::*;
    use crate::BufferPool;

    /// Refuses what a real driver refuses, and memory of more than `most` bytes.
    #[derive(Default)]
    struct Strict {
        ranges: Mutex<BTreeMap<usize, usize>>,
        most: Option<usize>,
    }

    impl DeviceDriver for Strict {
        fn register(&self, address: usize, len: usize) -> bool {
            let mut ranges = self.ranges.lock().unwrap();
            let before = ranges.range(..address + len).next_back();
            assert!(
                before.is_none_or(|(start, len)| start + len <= address),
                "registered twice"
            );
            let may = self.most.is_none_or(|most| len <= most);
            if may {
                ranges.insert(address, len);
            }
            may
        }

        fn unregister(&self, address: usize, len: usize) {
            assert!(is_mapped(address), "unmapped while registered");
            assert_eq!(self.ranges.lock().unwrap().remove(&address), Some(len));
        }
    }

    fn is_mapped(address: usize) -> bool {
        let Ok(maps) = std::fs::read_to_string("/proc/self/maps") else {
            return true;
        };
        maps.lines().any(|line| {
            let ends = line.split(' ').next().and_then(|ends| ends.split_once('-'));
            let number = |text| usize::from_str_radix(text, 16).unwrap_or(0);
            ends.is_some_and(|(start, end)| (number(start)..number(end)).contains(&address))
        })
    }

    fn registered(driver: &Arc<Strict>) -> usize {
        driver.ranges.lock().unwrap().len()
    }

    #[test]
    fn each_mapping_is_registered_once_and_until_it_is_unmapped() {
        let driver = Arc::new(Strict::default());
        let registry = HostRegistry::new(Arc::clone(&driver) as Arc<dyn DeviceDriver>);
        let pool = BufferPool::new(3 << 20).with_registry(Some(registry));
        for _ in 0..3 {
            let kept = [pool.take(1 << 20), pool.take(1 << 20)];
            assert_eq!(registered(&driver), 2, "reused");
            drop(kept);
        }
        // Too large to be kept, and then the pool ends before its last buffer.
        drop(pool.take(8 << 20));
        assert_eq!(registered(&driver), 2);
        let last = pool.take(1 << 20);
        drop(pool);
        assert_eq!(registered(&driver), 2);
        drop(last);
        assert_eq!(registered(&driver), 0);
    }

    #[test]
    fn memory_that_the_driver_refuses_is_used_all_the_same() {
        let driver = Arc::new(Strict {
            most: Some(4096),
            ..Strict::default()
        });
        let registry = HostRegistry::new(Arc::clone(&driver) as Arc<dyn DeviceDriver>);
        let pool = BufferPool::new(3 << 20).with_registry(Some(registry));
        let (mut large, small) = (pool.take(1 << 20), pool.take(4096));
        large.fill(1);
        assert_eq!(registered(&driver), 1);
        drop((large, small, pool));
        assert_eq!(registered(&driver), 0);
    }
}
