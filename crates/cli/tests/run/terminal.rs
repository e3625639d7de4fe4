//! At a terminal: Ctrl-C reaches everybody once, and rank 0 can read.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

use crate::support::{FOLDCAST, Launch, Running, eventually};

/// A launcher whose controlling terminal is held by the test.
struct Terminal {
    keyboard: File,
    screen: Arc<Mutex<String>>,
    run: Running,
}

impl Terminal {
    fn start(args: &[&str]) -> Terminal {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let path = ptsname(&master, Vec::new()).unwrap().into_string().unwrap();
        let slave = || Stdio::from(OpenOptions::new().read(true).write(true).open(&path).unwrap());
        let mut command = Command::new("setsid");
        command.args(["--ctty", "--wait", FOLDCAST, "run"]).args(args);
        let mut launch = Launch::of(command);
        launch.command.stdin(slave()).stdout(slave()).stderr(slave());
        let run = launch.start();
        let keyboard = File::from(master);
        let screen = Arc::<Mutex<String>>::default();
        let (mut reading, shown) = (keyboard.try_clone().unwrap(), Arc::clone(&screen));
        thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(length @ 1..) = reading.read(&mut buffer) {
                shown.lock().unwrap().push_str(&String::from_utf8_lossy(&buffer[..length]));
            }
        });
        Terminal { keyboard, screen, run }
    }

    fn screen(&self) -> String {
        self.screen.lock().unwrap().clone()
    }

    fn await_text(&self, count: usize, text: &str) {
        eventually(text, || (self.screen().matches(text).count() >= count).then_some(()));
    }
}

#[test]
fn ctrl_c_reaches_every_rank_once() {
    let script = "count=0; trap 'count=$((count+1))' INT; echo ready
        while [ $count -lt 1 ]; do sleep 0.02; done; sleep 0.2; echo interrupted $count times; exit 3";
    let mut terminal = Terminal::start(&["-n", "3", "--keep-going", "sh", "-c", script]);
    terminal.await_text(3, "ready");
    terminal.keyboard.write_all(b"\x03").unwrap();
    let status = eventually("the end of foldcast", || terminal.run.child.try_wait().unwrap());
    assert_eq!(status.code(), Some(3));
    terminal.await_text(3, "interrupted 1 times");
    terminal.run.await_nothing_left();
}

#[test]
fn rank_0_reads_the_terminal_and_what_it_started_does_not_outlive_the_run() {
    let script = "sleep 1000 & if [ $RANK = 0 ]; then [ -t 0 ] && read line && echo got $line; fi";
    let mut terminal = Terminal::start(&["-n", "2", "sh", "-c", script]);
    terminal.keyboard.write_all(b"hello\n").unwrap();
    terminal.await_text(1, "[0] got hello");
    let status = eventually("the end of foldcast", || terminal.run.child.try_wait().unwrap());
    assert_eq!(status.code(), Some(0), "{}", terminal.screen());
    terminal.run.await_nothing_left();
}

#[test]
fn a_second_ctrl_c_kills() {
    let script = "trap '' INT; echo ready; while :; do sleep 0.05; done";
    let mut terminal = Terminal::start(&["-n", "2", "sh", "-c", script]);
    terminal.await_text(2, "ready");
    terminal.keyboard.write_all(b"\x03").unwrap();
    terminal.await_text(1, "still there after SIGINT: 2 of 2 ranks");
    terminal.keyboard.write_all(b"\x03").unwrap();
    let status = eventually("the end of foldcast", || terminal.run.child.try_wait().unwrap());
    assert_eq!(status.code(), Some(130), "{}", terminal.screen());
    terminal.run.await_nothing_left();
}
