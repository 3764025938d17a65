//! `cargo xtask build-ptx`: compiles the kernels to host/ptx, or checks that what is committed there
//! is what they compile to.

use crate::cuda_builder::{self, ARCHS, Compiler, PTX_VERSION};
use crate::ptx::header::Header;
use crate::ptx::{self, Program};
use crate::sources::{SharedArray, Sources, sha256};
use crate::{flags, ptxas};
use anyhow::{Context, Result, bail};
use kernels_gpu::Entry;
use kernels_gpu::overlap::{OVERLAPS_FROM, overlapping};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use xshell::Shell;

const COMMITTED: &str = "host/ptx";
const KERNELS_DIR: &str = "kernels-gpu";

pub(crate) fn run(sh: &Shell, flags: &flags::BuildPtx) -> Result<()> {
    let (rustc, ptxas) = (flags.rustc.as_deref(), flags.ptxas.as_deref());
    if flags.check {
        check(sh, rustc, ptxas, false)?;
        return Ok(());
    }
    build(sh, rustc, ptxas)
}

fn build(sh: &Shell, rustc: Option<&Path>, ptxas: Option<&Path>) -> Result<()> {
    let ptxas = ptxas::find(ptxas)?;
    let compilers = cuda_builder::find(sh, rustc, true)?;
    // The one that made what is there, if possible: then the difference is the source's.
    let Some(compiler) = made_by(&compilers, sh).or(compilers.first()) else {
        bail!("{}", cuda_builder::how_to_install());
    };
    println!("compiler: {}", compiler.describe());
    let task = Task::new(sh)?;

    let mut table = Vec::new();
    for arch in ARCHS {
        let modules = task.compile(compiler, arch)?;
        // Committed PTX that works is not replaced by PTX that may not: it is checked elsewhere.
        let staged = PathBuf::from(format!("target/ptx/{arch}/modules"));
        sh.remove_path(&staged)?;
        let mut problems = Vec::new();
        for (module, text) in &modules {
            let file = staged.join(format!("{module}.ptx"));
            sh.write_file(&file, text)?;
            problems.extend(in_file(&file, task.check_text(arch, module, text)));
        }
        if let (Some(ptxas), []) = (&ptxas, &problems[..]) {
            for module in modules.keys() {
                let file = staged.join(format!("{module}.ptx"));
                let found = task.assemble(ptxas, arch, module, &file, &mut table)?;
                problems.extend(in_file(&file, found));
            }
        }
        fail_on(&problems)?;
        task.replace_committed(arch, &modules)?;
    }
    for dir in task.unknown_dirs()? {
        remove(sh, &dir)?;
    }
    report(&table, ptxas.is_some());
    Ok(())
}

/// Fails if the committed PTX is stale, edited or wrong. Says what was compared.
pub(crate) fn check(
    sh: &Shell,
    rustc: Option<&Path>,
    ptxas: Option<&Path>,
    install: bool,
) -> Result<&'static str> {
    let ptxas = ptxas::find(ptxas)?;
    let task = Task::new(sh)?;
    let (mut table, mut problems) = (Vec::new(), Vec::new());
    let mut made_with = BTreeSet::new();
    for arch in ARCHS {
        for module in task.modules.keys() {
            let file = task.committed(arch, module);
            let Ok(text) = sh.read_file(&file) else {
                problems.push(format!("{}: missing", file.display()));
                continue;
            };
            made_with.extend(Header::parse(&text).map(|(header, _)| header.rustc));
            let mut found = task.check_text(arch, module, &text);
            if let (Some(ptxas), []) = (&ptxas, &found[..]) {
                found = task.assemble(ptxas, arch, module, &file, &mut table)?;
            }
            problems.extend(in_file(&file, found));
        }
        for file in task.unknown_files(arch)? {
            problems.push(format!("{}: the kernel table has no such module", file.display()));
        }
    }
    for dir in task.unknown_dirs()? {
        problems.push(format!("{}: not compiled for this", dir.display()));
    }
    if made_with.len() > 1 {
        let compilers: Vec<String> = made_with.into_iter().collect();
        problems.push(format!("files of different compilers:\n{}", compilers.join("\nand\n")));
    }
    fail_on(&problems)
        .context("the committed PTX will not do; `cargo xtask build-ptx` makes it")?;
    report(&table, ptxas.is_some());

    let compilers = match cuda_builder::find(sh, rustc, install) {
        // What cannot be installed is no fault of the PTX.
        Err(why) if rustc.is_none() => {
            println!("{why:#}");
            Vec::new()
        }
        compilers => compilers?,
    };
    let Some(compiler) = made_by(&compilers, sh) else {
        let kind = "only the hash of the source was compared";
        match compilers.first() {
            Some(other) => {
                println!("{kind}: the PTX was made by another compiler than {}", other.describe())
            }
            None => println!("{kind}: {}", cuda_builder::how_to_install()),
        }
        return Ok("hash of the source only");
    };
    println!("compiler: {}", compiler.describe());
    for arch in ARCHS {
        for (module, text) in task.compile(compiler, arch)? {
            let file = task.committed(arch, &module);
            if sh.read_file(&file)? != text {
                problems.push(format!(
                    "{}: not the bytes that this compiler makes of the same source",
                    file.display()
                ));
            }
        }
    }
    fail_on(&problems)?;
    println!("the PTX was compiled again: every byte is the same");
    Ok("compiled again, every byte the same")
}

/// What both commands know.
struct Task<'a> {
    sh: &'a Shell,
    sources: Sources,
    shared_arrays: Vec<SharedArray>,
    /// The kernel table, by module.
    modules: BTreeMap<&'static str, Vec<&'static Entry>>,
}

impl<'a> Task<'a> {
    fn new(sh: &'a Shell) -> Result<Self> {
        let sources = Sources::read(&sh.current_dir().join(KERNELS_DIR))?;
        let mut modules = BTreeMap::<_, Vec<_>>::new();
        for entry in kernels_gpu::all() {
            modules.entry(entry.module).or_default().push(entry);
        }
        Ok(Self { sh, shared_arrays: sources.shared_arrays(), sources, modules })
    }

    /// The file of a module in host/ptx, relative to the workspace.
    fn committed(&self, arch: &str, module: &str) -> PathBuf {
        PathBuf::from(format!("{COMMITTED}/{arch}/{module}.ptx"))
    }

    /// The text of every module's file.
    fn compile(&self, compiler: &Compiler, arch: &str) -> Result<BTreeMap<String, String>> {
        let program = Program::parse(&compiler.compile(self.sh, arch)?)?;
        let entries: Vec<&Entry> = self.modules.values().flatten().copied().collect();
        let mut problems = ptx::check::extern_functions(&program);
        problems.extend(ptx::check::entries(&program, &entries));
        fail_on(&problems).context("the kernels do not compile to what their table says")?;

        let mut files = BTreeMap::new();
        for (module, entries) in &self.modules {
            let body = program.module(entries)?;
            let mut header = self.header(arch, module);
            header.rustc.clone_from(&compiler.verbose);
            header.body = sha256(body.as_bytes());
            files.insert((*module).to_owned(), format!("{header}{body}"));
        }
        Ok(files)
    }

    /// The header that a module's file should have, up to what its compiler adds.
    fn header(&self, arch: &str, module: &str) -> Header {
        let flags = cuda_builder::flags(arch);
        Header {
            module: module.to_owned(),
            arch: arch.to_owned(),
            source: self.sources.sha256(&flags),
            rustc: String::new(),
            flags,
            body: String::new(),
        }
    }

    /// All that the text of a module's file shows.
    fn check_text(&self, arch: &str, module: &str, text: &str) -> Vec<String> {
        let (header, body) = match Header::parse(text) {
            Ok(parts) => parts,
            Err(why) => return vec![format!("{why:#}")],
        };
        let mut problems = header.problems(&self.header(arch, module), body);
        match Program::parse(body) {
            Err(why) => problems.push(format!("{why:#}")),
            Ok(program) => problems.extend(ptx::check::module(
                &program,
                &ptx::check::Expected {
                    version: PTX_VERSION,
                    arch,
                    entries: &self.modules[module],
                    shared_arrays: &self.shared_arrays,
                },
            )),
        }
        problems
    }

    /// Assembles a module's file, for each GPU as its driver gets it; adds its lines to the table.
    fn assemble(
        &self,
        ptxas: &Path,
        arch: &str,
        module: &str,
        file: &Path,
        table: &mut Vec<[String; 9]>,
    ) -> Result<Vec<String>> {
        let output = self.sh.create_dir("target/ptx")?.join("assembled.cubin");
        let mut problems = Vec::new();
        for gpu in ptxas::gpus(arch) {
            let mut text = self.sh.read_file(file)?;
            if ptxas::capability(gpu) >= OVERLAPS_FROM {
                text = overlapping(&text);
            }
            let input = Path::new("target/ptx/assembled.ptx");
            self.sh.write_file(input, text)?;
            let usages = ptxas::assemble(self.sh, ptxas, input, gpu, &output)
                .with_context(|| file.display().to_string())?;
            problems.extend(usages.iter().filter_map(|usage| usage.problem(gpu)));
            for entry in &self.modules[module] {
                match usages.iter().find(|usage| usage.function == entry.name) {
                    Some(usage) => table.push(usage.row(arch, gpu)),
                    None => problems.push(format!("{}: ptxas says nothing of it", entry.name)),
                }
            }
        }
        Ok(problems)
    }

    fn replace_committed(&self, arch: &str, modules: &BTreeMap<String, String>) -> Result<()> {
        for (module, text) in modules {
            let file = self.committed(arch, module);
            // The same bytes keep their time: nothing that includes them is compiled again.
            if self.sh.read_file(&file).is_ok_and(|old| old == *text) {
                println!("unchanged {}", file.display());
                continue;
            }
            self.sh.write_file(&file, text)?;
            println!("wrote {}", file.display());
        }
        for file in self.unknown_files(arch)? {
            remove(self.sh, &file)?;
        }
        Ok(())
    }

    /// PTX files of modules that the table does not name.
    fn unknown_files(&self, arch: &str) -> Result<Vec<PathBuf>> {
        let known = |file: &Path| {
            let stem = file.file_stem().and_then(|stem| stem.to_str());
            stem.is_some_and(|stem| self.modules.contains_key(stem))
        };
        let mut files = list(self.sh, &format!("{COMMITTED}/{arch}"))?;
        files.retain(|file| file.extension().is_some_and(|ext| ext == "ptx") && !known(file));
        Ok(files)
    }

    /// Directories of architectures that nothing is compiled for.
    fn unknown_dirs(&self) -> Result<Vec<PathBuf>> {
        let mut dirs = list(self.sh, COMMITTED)?;
        dirs.retain(|dir| {
            let name = dir.file_name().and_then(|name| name.to_str());
            name.is_some_and(|name| name.starts_with("sm_") && !ARCHS.contains(&name))
        });
        Ok(dirs)
    }
}

/// The compiler that made the committed PTX.
fn made_by<'a>(compilers: &'a [Compiler], sh: &Shell) -> Option<&'a Compiler> {
    let files = list(sh, &format!("{COMMITTED}/{}", ARCHS[0])).ok()?;
    let text = sh.read_file(files.first()?).ok()?;
    let (header, _) = Header::parse(&text).ok()?;
    compilers.iter().find(|one| one.verbose == header.rustc)
}

/// What lies in a directory of the workspace, as paths relative to the workspace.
fn list(sh: &Shell, dir: &str) -> Result<Vec<PathBuf>> {
    if !sh.path_exists(dir) {
        return Ok(Vec::new());
    }
    let name = |path: PathBuf| Some(Path::new(dir).join(path.file_name()?));
    Ok(sh.read_dir(dir)?.into_iter().filter_map(name).collect())
}

fn remove(sh: &Shell, path: &Path) -> Result<()> {
    println!("removing {}", path.display());
    Ok(sh.remove_path(path)?)
}

fn in_file(file: &Path, problems: Vec<String>) -> impl Iterator<Item = String> {
    let file = file.display().to_string();
    problems.into_iter().map(move |problem| format!("{file}: {problem}"))
}

fn fail_on(problems: &[String]) -> Result<()> {
    match problems {
        [] => Ok(()),
        _ => bail!("{}", problems.join("\n")),
    }
}

/// Prints what ptxas found.
fn report(table: &[[String; 9]], ptxas: bool) {
    if !ptxas {
        println!("no ptxas here: registers and spills were not looked at");
        return;
    }
    let headings = ptxas::Usage::HEADINGS.map(str::to_owned);
    let rows = || std::iter::once(&headings).chain(table);
    for row in rows() {
        let mut line = String::new();
        for (column, cell) in row.iter().enumerate() {
            let width = rows().map(|row| row[column].len()).max().unwrap_or(0);
            if column < 3 {
                line += &format!("{cell:width$}  ");
            } else {
                line += &format!("{cell:>width$}  ");
            }
        }
        println!("{}", line.trim_end());
    }
}
