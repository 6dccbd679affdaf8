// The table behind the prefix cache: hashes lead to candidates, tokens decide.
#include "serve/cache/prefix_index.h"

#include <gtest/gtest.h>

#include <vector>

namespace lapidary::test {
namespace {

using serve::EvictedPrefixes;
using serve::page_hashes;
using serve::PrefixIndex;
using Ids = std::vector<int32_t>;

constexpr int64_t kPage = 4;

Ids counted(int32_t from, size_t n) {
  Ids ids(n);
  for (size_t i = 0; i < n; i++) ids[i] = from + static_cast<int32_t>(i);
  return ids;
}
Ids joined(Ids a, const Ids& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}
PrefixIndex::Found find(const PrefixIndex& index, const Ids& ids, int64_t limit = 1000) {
  return index.find(ids, page_hashes(ids, kPage), limit);
}

TEST(PageHashes, DependOnAllThatCameBefore) {
  const Ids a = counted(0, 11);
  Ids b = a;
  b[1] = 77;
  const auto of_a = page_hashes(a, kPage), of_b = page_hashes(b, kPage);
  ASSERT_EQ(of_a.size(), 3u);
  EXPECT_EQ(of_a[0], of_b[0]);
  EXPECT_NE(of_a[1], of_b[1]);
  EXPECT_NE(of_a[2], of_b[2]);
  EXPECT_EQ(page_hashes(counted(0, 8), kPage)[2], of_a[2]);
  EXPECT_EQ(page_hashes({}, kPage).size(), 1u);
}

TEST(PrefixIndex, FindsTheLongestThatCanGoOn) {
  const Ids a = joined(counted(0, 10), counted(50, 6)), b = counted(0, 13), c = counted(0, 7);
  PrefixIndex index(kPage);
  EXPECT_EQ(find(index, b).usable.sequence, -1);
  index.add(0, a, page_hashes(a, kPage), 0);
  index.add(1, b, page_hashes(b, kPage), 12);
  index.add(2, c, page_hashes(c, kPage), 6);
  EXPECT_EQ(find(index, counted(0, 20)).usable.sequence, 1);
  EXPECT_EQ(find(index, counted(0, 20)).usable.tokens, 13);
  EXPECT_EQ(find(index, counted(0, 20), 11).usable.sequence, 0) << "b cannot go on from 11";
  EXPECT_EQ(find(index, counted(0, 20), 11).usable.tokens, 10);
  EXPECT_EQ(find(index, counted(0, 20), 11).common, 11);
  EXPECT_EQ(find(index, joined(counted(0, 7), {99})).usable.sequence, 2)
      << "of equals the one that ends there";
  EXPECT_EQ(find(index, joined(counted(0, 3), {99})).usable.tokens, 3);
  EXPECT_EQ(find(index, {99}).common, 0);
  index.remove(0);
  EXPECT_EQ(find(index, counted(0, 20), 11).usable.tokens, 7);
  EXPECT_EQ(find(index, counted(0, 20), 11).common, 11);
  index.remove(1);
  index.remove(2);
  EXPECT_EQ(find(index, counted(0, 20)).common, 0);
}

// Another text under the same hashes: a collision, forged.
TEST(PrefixIndex, NeverTrustsAHashAlone) {
  const Ids wanted = counted(0, 13), other = joined({0, 1, 2}, counted(70, 10)), same = counted(0, 5);
  PrefixIndex index(kPage);
  index.add(0, other, page_hashes(wanted, kPage), 0);
  EXPECT_EQ(find(index, wanted).usable.tokens, 3);
  EXPECT_EQ(find(index, wanted).common, 3);
  EXPECT_EQ(index.covering(wanted, page_hashes(wanted, kPage), 0), -1);
  index.add(1, same, page_hashes(same, kPage), 0);
  EXPECT_EQ(find(index, wanted).usable.sequence, 1);
  EXPECT_EQ(find(index, wanted).usable.tokens, 5);
  EXPECT_TRUE(index.covered_by(0).empty());
  EXPECT_TRUE(index.longer(1).empty());
}

TEST(PrefixIndex, KnowsWhatIsSuperfluous) {
  const Ids a = counted(0, 6), b = counted(0, 9), c = counted(0, 16);
  PrefixIndex index(kPage);
  index.add(0, a, page_hashes(a, kPage), 0);
  index.add(1, b, page_hashes(b, kPage), 8);
  index.add(2, c, page_hashes(c, kPage), 8);
  EXPECT_EQ(index.covered_by(2), std::vector<int32_t>{1}) << "from 0 to 6 only the first can go on";
  EXPECT_EQ(index.covering(counted(0, 9), page_hashes(counted(0, 9), kPage), 8), 1);
  EXPECT_EQ(index.covering(counted(0, 12), page_hashes(counted(0, 12), kPage), 8), 2);
  EXPECT_EQ(index.covering(counted(0, 12), page_hashes(counted(0, 12), kPage), 5), -1);
  EXPECT_EQ(index.covering(counted(0, 17), page_hashes(counted(0, 17), kPage), 9), -1);
  EXPECT_EQ(index.longer(0), (std::vector<int32_t>{1, 2}));
  EXPECT_EQ(index.shorter(2), (std::vector<int32_t>{0, 1}));
}

TEST(EvictedPrefixes, RemembersWhatCouldHaveServed) {
  const Ids a = counted(0, 14);
  const auto longest = [](const EvictedPrefixes& evicted, const Ids& ids, int64_t limit = 1000) {
    return evicted.longest(ids, page_hashes(ids, kPage), limit);
  };
  EvictedPrefixes evicted(kPage);
  evicted.add(a, page_hashes(a, kPage), 7);
  EXPECT_EQ(longest(evicted, counted(0, 20)), 14);
  EXPECT_EQ(longest(evicted, counted(0, 20), 13), 12);
  EXPECT_EQ(longest(evicted, joined(counted(0, 9), {99})), 8);
  EXPECT_EQ(longest(evicted, counted(0, 7)), 0) << "4 was lost already";
  EXPECT_EQ(longest(evicted, {99}), 0);
  evicted.clear();
  EXPECT_EQ(longest(evicted, counted(0, 20)), 0);
}

TEST(EvictedPrefixes, ForgetsTheOldest) {
  EvictedPrefixes evicted(kPage, 3);
  std::vector<Ids> texts;
  for (int32_t i = 0; i < 5; i++) {
    texts.push_back(counted(100 * i, 4));
    evicted.add(texts.back(), page_hashes(texts.back(), kPage), 0);
    evicted.add(texts.back(), page_hashes(texts.back(), kPage), 0);  // known: it takes no place
  }
  for (size_t i = 0; i < 5; i++)
    EXPECT_EQ(evicted.longest(texts[i], page_hashes(texts[i], kPage), 4), i < 2 ? 0 : 4) << i;
}

}  // namespace
}  // namespace lapidary::test
