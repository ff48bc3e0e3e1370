#include "core/modules/elf_image.h"

#include <elf.h>
#include <orthant/error.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <vector>

namespace orthant {
namespace {

#if defined(__x86_64__)
constexpr std::uint16_t this_machine = EM_X86_64;
#elif defined(__aarch64__)
constexpr std::uint16_t this_machine = EM_AARCH64;
#else
#error "name the ELF machine of this processor"
#endif
static_assert(std::endian::native == std::endian::little);

constexpr std::uint16_t most_headers = 4096;

template <class... Args>
void check(bool ok, fmt::format_string<Args...> format, Args&&... args) {
  if (!ok) {
    fail("cut short or damaged: {}", fmt::format(format, std::forward<Args>(args)...));
  }
}

// Bounds first, then a copy: nothing in a file need be aligned.
template <class T>
T read(Bytes file, std::uint64_t at, const char* what) {
  check(at <= file.size() && file.size() - at >= sizeof(T), "{} would end at byte {} of {}", what, at + sizeof(T),
        file.size());
  T value;
  std::memcpy(&value, file.data() + at, sizeof(T));
  return value;
}

class Checker {
 public:
  explicit Checker(Bytes file) : file_(file) {}

  // Returns where the library ends.
  std::uint64_t check_all() {
    check_header();
    check_segments();
    check_sections();
    check_dynamic();
    return end_;
  }

 private:
  // The library has bytes [at, at + size), and no fewer.
  void within(std::uint64_t at, std::uint64_t size, const char* what) {
    check(at <= file_.size() && size <= file_.size() - at, "{} has {} bytes from byte {}, the file has {}", what, size,
          at, file_.size());
    end_ = std::max(end_, at + size);
  }

  void check_header() {
    if (file_.size() < SELFMAG || std::memcmp(file_.data(), ELFMAG, SELFMAG) != 0) {
      fail("not a shared library: invalid ELF header");
    }
    within(0, sizeof(Elf64_Ehdr), "the ELF header");
    header_ = read<Elf64_Ehdr>(file_, 0, "the ELF header");
    if (header_.e_ident[EI_CLASS] != ELFCLASS64 || header_.e_ident[EI_DATA] != ELFDATA2LSB ||
        header_.e_machine != this_machine) {
      fail("not a library of this machine: ELF class {}, byte order {}, machine {}, expected {}, {}, {}",
           header_.e_ident[EI_CLASS], header_.e_ident[EI_DATA], header_.e_machine, ELFCLASS64, ELFDATA2LSB,
           this_machine);
    }
    if (header_.e_type != ET_DYN) {
      fail("not a shared library: ELF type {}, expected {}", header_.e_type, ET_DYN);
    }
    check(header_.e_ident[EI_VERSION] == EV_CURRENT && header_.e_version == EV_CURRENT, "unknown version of ELF");
    check(header_.e_ehsize == sizeof(Elf64_Ehdr) && header_.e_phentsize == sizeof(Elf64_Phdr),
          "headers of {} and {} bytes", header_.e_ehsize, header_.e_phentsize);
    check(header_.e_phnum > 0 && header_.e_phnum <= most_headers, "{} program headers", header_.e_phnum);
    within(header_.e_phoff, std::uint64_t{header_.e_phnum} * sizeof(Elf64_Phdr), "the table of program headers");
    for (std::uint64_t i = 0; i < header_.e_phnum; ++i) {
      segments_.push_back(
          read<Elf64_Phdr>(file_, header_.e_phoff + i * sizeof(Elf64_Phdr), "the table of program headers"));
    }
  }

  void check_segments() {
    std::uint64_t next = 0;  // address: segments ascend and do not overlap
    for (const Elf64_Phdr& segment : segments_) {
      within(segment.p_offset, segment.p_filesz, "a segment");
      if (segment.p_type != PT_LOAD) {
        continue;
      }
      check(segment.p_filesz <= segment.p_memsz && segment.p_vaddr + segment.p_memsz >= segment.p_vaddr,
            "a segment of {} bytes in memory and {} in the file", segment.p_memsz, segment.p_filesz);
      check(std::has_single_bit(std::max<std::uint64_t>(segment.p_align, 1)) &&
                (segment.p_vaddr - segment.p_offset) % std::max<std::uint64_t>(segment.p_align, 1) == 0,
            "a segment is aligned to {} bytes", segment.p_align);
      check(segment.p_vaddr >= next, "segments overlap");
      next = segment.p_vaddr + segment.p_memsz;
    }
    check(next != 0 && next < std::uint64_t{1} << 40, "the library would take {} bytes of memory", next);
  }

  void check_sections() {
    if (header_.e_shnum == 0 && header_.e_shoff == 0) {
      return;  // stripped of them: only debuggers need them
    }
    check(header_.e_shentsize == sizeof(Elf64_Shdr) && header_.e_shnum > 0 && header_.e_shnum <= most_headers &&
              header_.e_shstrndx < header_.e_shnum,
          "{} section headers of {} bytes", header_.e_shnum, header_.e_shentsize);
    within(header_.e_shoff, std::uint64_t{header_.e_shnum} * sizeof(Elf64_Shdr), "the table of section headers");
    for (std::uint64_t i = 0; i < header_.e_shnum; ++i) {
      const auto section =
          read<Elf64_Shdr>(file_, header_.e_shoff + i * sizeof(Elf64_Shdr), "the table of section headers");
      if (section.sh_type != SHT_NULL && section.sh_type != SHT_NOBITS) {
        within(section.sh_offset, section.sh_size, "a section");
      }
    }
  }

  // Where `size` bytes at an address of the library lie in the file.
  std::uint64_t offset_of(std::uint64_t address, std::uint64_t size, const char* what) const {
    for (const Elf64_Phdr& segment : segments_) {
      if (segment.p_type == PT_LOAD && address >= segment.p_vaddr && address - segment.p_vaddr <= segment.p_filesz &&
          size <= segment.p_filesz - (address - segment.p_vaddr)) {
        return segment.p_offset + (address - segment.p_vaddr);
      }
    }
    fail("cut short or damaged: {}, {} bytes at address {:#x}, lies in no segment", what, size, address);
  }

  void check_dynamic() {
    const auto dynamic = std::find_if(segments_.begin(), segments_.end(),
                                      [](const Elf64_Phdr& segment) { return segment.p_type == PT_DYNAMIC; });
    check(dynamic != segments_.end(), "it has no dynamic section");
    check(offset_of(dynamic->p_vaddr, dynamic->p_filesz, "the dynamic section") == dynamic->p_offset,
          "the dynamic section lies elsewhere in memory than in the file");
    std::vector<Elf64_Dyn> entries;
    for (std::uint64_t at = 0;; at += sizeof(Elf64_Dyn)) {
      check(at + sizeof(Elf64_Dyn) <= dynamic->p_filesz, "the dynamic section has no end");
      entries.push_back(read<Elf64_Dyn>(file_, dynamic->p_offset + at, "the dynamic section"));
      if (entries.back().d_tag == DT_NULL) {
        break;
      }
    }
    const auto value = [&](std::int64_t tag) {
      const auto found =
          std::find_if(entries.begin(), entries.end(), [&](const Elf64_Dyn& entry) { return entry.d_tag == tag; });
      return found == entries.end() ? std::uint64_t{0} : found->d_un.d_val;
    };
    const std::uint64_t strings_size = value(DT_STRSZ);
    const std::uint64_t strings = offset_of(value(DT_STRTAB), strings_size, "the table of strings");
    check(strings_size > 0 && file_[strings + strings_size - 1] == '\0', "the table of strings has no end");
    for (const Elf64_Dyn& entry : entries) {
      const bool name =
          entry.d_tag == DT_NEEDED || entry.d_tag == DT_SONAME || entry.d_tag == DT_RPATH || entry.d_tag == DT_RUNPATH;
      check(!name || entry.d_un.d_val < strings_size, "a name lies outside of the table of strings");
    }
    check(value(DT_SYMENT) == sizeof(Elf64_Sym), "symbols of {} bytes", value(DT_SYMENT));
    check_symbols(offset_of(value(DT_SYMTAB), sizeof(Elf64_Sym), "the table of symbols"), strings_size);
    const struct {
      std::int64_t start, size;
      const char* what;
    } tables[] = {{DT_RELA, DT_RELASZ, "a table of relocations"},
                  {DT_JMPREL, DT_PLTRELSZ, "a table of relocations"},
                  {DT_INIT_ARRAY, DT_INIT_ARRAYSZ, "the table of constructors"},
                  {DT_FINI_ARRAY, DT_FINI_ARRAYSZ, "the table of destructors"},
                  {DT_GNU_HASH, DT_NULL, "the hash table of symbols"},
                  {DT_HASH, DT_NULL, "the hash table of symbols"},
                  {DT_VERSYM, DT_NULL, "the versions of symbols"},
                  {DT_VERNEED, DT_NULL, "the versions of symbols"},
                  {DT_INIT, DT_NULL, "a constructor"},
                  {DT_FINI, DT_NULL, "a destructor"}};
    for (const auto& table : tables) {
      if (value(table.start) != 0) {
        offset_of(value(table.start), table.size == DT_NULL ? 1 : value(table.size), table.what);
      }
    }
  }

  // Their number stands nowhere but in the section headers: those that have them are read.
  void check_symbols(std::uint64_t table, std::uint64_t strings_size) {
    for (std::uint64_t i = 0; header_.e_shoff != 0 && i < header_.e_shnum; ++i) {
      const auto section = read<Elf64_Shdr>(file_, header_.e_shoff + i * sizeof(Elf64_Shdr), "a section header");
      if (section.sh_type != SHT_DYNSYM) {
        continue;
      }
      check(section.sh_offset == table, "two tables of symbols");
      for (std::uint64_t at = 0; at + sizeof(Elf64_Sym) <= section.sh_size; at += sizeof(Elf64_Sym)) {
        check(read<Elf64_Sym>(file_, table + at, "a symbol").st_name < strings_size,
              "a symbol's name lies outside of the table of strings");
      }
    }
  }

  Bytes file_;
  Elf64_Ehdr header_{};
  std::vector<Elf64_Phdr> segments_;
  std::uint64_t end_ = 0;
};

std::uint64_t aligned(std::uint64_t size, std::uint64_t alignment) {
  return (size + alignment - 1) / alignment * alignment;
}

}  // namespace

ElfImage::ElfImage(Bytes file) : file_(file), size_(Checker(file).check_all()) {}

void ElfImage::notes(const std::function<void(std::string_view, std::uint32_t, Bytes)>& visit) const {
  const auto header = read<Elf64_Ehdr>(file_, 0, "the ELF header");
  for (std::uint64_t i = 0; i < header.e_phnum; ++i) {
    const auto segment = read<Elf64_Phdr>(file_, header.e_phoff + i * sizeof(Elf64_Phdr), "a program header");
    if (segment.p_type != PT_NOTE) {
      continue;
    }
    const std::uint64_t alignment = segment.p_align == 8 ? 8 : 4;
    const Bytes notes = file_.subspan(segment.p_offset, segment.p_filesz);
    for (std::uint64_t at = 0; notes.size() - at >= sizeof(Elf64_Nhdr);) {
      const auto note = read<Elf64_Nhdr>(notes, at, "a note");
      const std::uint64_t name = at + sizeof note;
      // Offsets are aligned, not sizes: 12 bytes of header and "GNU" fill 16, with either alignment.
      const std::uint64_t descriptor = at + aligned(sizeof note + note.n_namesz, alignment);
      check(descriptor <= notes.size() && note.n_descsz <= notes.size() - descriptor, "a note has no end");
      visit({notes.data() + name, note.n_namesz}, note.n_type, notes.subspan(descriptor, note.n_descsz));
      at = std::min<std::uint64_t>(at + aligned(descriptor - at + note.n_descsz, alignment), notes.size());
    }
  }
}

}  // namespace orthant
