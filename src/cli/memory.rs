//! Memory of this machine, in words and numbers.

use std::fs;

/// Bytes of memory in all, and those that a program could have now, where the system says it.
pub(super) fn of_machine() -> Option<(u64, u64)> {
    let info = fs::read_to_string("/proc/meminfo").ok()?;
    let kib = |name: &str| {
        let line = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()
    };
    let (all, free) = (kib("MemTotal")? << 10, kib("MemAvailable")? << 10);
    // A container has what its group has.
    let number = |file: &str| fs::read_to_string(format!("/sys/fs/cgroup/{file}")).ok()?.trim().parse::<u64>().ok();
    match (number("memory.max"), number("memory.current")) {
        (Some(most), used) if most < all => Some((most, free.min(most.saturating_sub(used.unwrap_or(0))))),
        _ => Some((all, free)),
    }
}

/// Bytes for people.
pub(super) fn bytes(bytes: u64) -> String {
    match bytes as f64 {
        b if b >= 1e12 => format!("{:.2} TB", b / 1e12),
        b if b >= 1e9 => format!("{:.2} GB", b / 1e9),
        b if b >= 1e6 => format!("{:.1} MB", b / 1e6),
        b if b >= 1e3 => format!("{:.1} kB", b / 1e3),
        b => format!("{b:.0} bytes"),
    }
}

/// Whether weights of so many bytes fit, in words; none where nothing is known.
pub(super) fn fits(weights: u64) -> Option<String> {
    let (all, free) = of_machine()?;
    // The cache and what is computed with: a tenth, as a rule of thumb.
    let needed = weights.saturating_add(weights / 10);
    Some(match needed {
        needed if needed <= free => format!("fits the memory ({} of {} free)", bytes(free), bytes(all)),
        needed if needed <= all => {
            format!("fits the memory only if other programs give some back ({} of {} free)", bytes(free), bytes(all))
        }
        _ => format!(
            "does NOT fit the memory ({}): it will be very slow, or fail; a smaller quantisation may fit",
            bytes(all)
        ),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_have_units() {
        let shown = [0, 999, 1000, 1_500_000, 2_345_000_000, 1 << 50].map(bytes);
        assert_eq!(shown, ["0 bytes", "999 bytes", "1.0 kB", "1.5 MB", "2.35 GB", "1125.90 TB"]);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn what_fits_is_said() {
        assert!(fits(1).unwrap().starts_with("fits the memory ("));
        assert!(fits(u64::MAX).unwrap().starts_with("does NOT fit"));
    }
}
