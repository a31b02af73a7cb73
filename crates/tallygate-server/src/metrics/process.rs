//! The `process_*` metrics that every client library of Prometheus exports, read from Linux's `/proc`.

use super::text::Exposition;

/// USER_HZ, which is part of Linux's interface.
const TICKS_PER_SECOND: f64 = 100.0;

/// Nothing, where there is no `/proc`.
pub(super) fn render(page: &mut Exposition) {
    let Some(process) = Process::read() else { return };
    page.counter("process_cpu_seconds_total", "User and system CPU time, in seconds.");
    page.sample(&[], process.cpu_seconds);
    page.number("process_resident_memory_bytes", "Resident memory, in bytes.", process.resident_bytes);
    page.number("process_virtual_memory_bytes", "Virtual memory, in bytes.", process.virtual_bytes);
    page.number("process_open_fds", "Open file descriptors.", process.open_fds);
    page.number("process_max_fds", "The limit of open file descriptors.", process.max_fds);
    page.number(
        "process_start_time_seconds",
        "When the process started, in seconds since 1970.",
        process.started_at_seconds,
    );
}

#[derive(Debug)]
struct Process {
    cpu_seconds: f64,
    resident_bytes: u64,
    virtual_bytes: u64,
    open_fds: usize,
    max_fds: u64,
    started_at_seconds: f64,
}

impl Process {
    fn read() -> Option<Self> {
        let read = |path: &str| std::fs::read_to_string(path).ok();
        let stat = read("/proc/self/stat")?;
        // The name of the program is in parentheses and may contain anything; the state, field 3, follows it.
        let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
        let ticks = |field: usize| fields.get(field - 3)?.parse::<f64>().ok();
        let status = read("/proc/self/status")?;
        let bytes = |name: &str| Some(after(&status, name)?.split_whitespace().next()?.parse::<u64>().ok()? * 1024);
        let boot_seconds: f64 = after(&read("/proc/stat")?, "btime ")?.trim().parse().ok()?;
        let limits = read("/proc/self/limits")?;
        let soft = after(&limits, "Max open files")?.split_whitespace().next()?;
        Some(Self {
            cpu_seconds: (ticks(14)? + ticks(15)?) / TICKS_PER_SECOND,
            resident_bytes: bytes("VmRSS:")?,
            virtual_bytes: bytes("VmSize:")?,
            // Without the one that lists them.
            open_fds: std::fs::read_dir("/proc/self/fd").ok()?.count().saturating_sub(1),
            max_fds: soft.parse().unwrap_or(u64::MAX),
            started_at_seconds: boot_seconds + ticks(22)? / TICKS_PER_SECOND,
        })
    }
}

/// The rest of the line that begins with `name`.
fn after<'t>(text: &'t str, name: &str) -> Option<&'t str> {
    text.lines().find_map(|line| line.strip_prefix(name))
}
